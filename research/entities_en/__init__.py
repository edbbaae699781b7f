"""English names: the guideline of their labels, teachers that label texts, and the bundled ``entities_en_small``."""
