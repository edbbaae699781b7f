"""Training of the bundled ``entities_en``: the guideline of its labels."""
