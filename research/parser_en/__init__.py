"""Training of the bundled ``parser_en``."""
