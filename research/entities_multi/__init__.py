"""The training behind the bundled entities_multi, and what is chosen after it."""
