"""Fixtures shared with the tests of the product."""

from concord_testing.tiny_taggers import tiny_bundle, token_bundle, write_corpus

__all__ = ["tiny_bundle", "token_bundle", "write_corpus"]
