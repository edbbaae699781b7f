"""The bundled parser, loaded once for all tests of these files."""

import pytest
from concord_testing.parses import plain_parser

from concord.pipeline.config import ParserConfig
from concord.pipeline.parsing.stanza_parser import StanzaParser


@pytest.fixture(scope="session")
def parser() -> StanzaParser:
    """Return the bundled English parser."""
    return StanzaParser(ParserConfig())


@pytest.fixture(scope="session")
def plain() -> StanzaParser:
    """Return the same without shortcuts: Stanza's own processors."""
    return plain_parser(ParserConfig())
