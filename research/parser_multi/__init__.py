"""Training of the bundled ``parser_multi``."""

from research.parser_multi.texts import contraction as contraction
