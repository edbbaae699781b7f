"""A long run of one character costs no more time than prose of its length."""

import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import Document, ParsedDocument
from concord.pipeline.parsing.spanning_tree import best_tree
from concord.pipeline.parsing.stanza_fast import find_addresses
from concord.pipeline.parsing.stanza_parser import StanzaParser

PIECES = (
    *("a", "b", "A", "1", ".", "-", "@", '"', "\\", ":", "/", "[", "]", " ", "_", "+", "\u00e9", "..", "www", "www."),
    *("http://", "https://", ".com", ".co", ".org", "a@b.com", '"@'),
)


def processor_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def nested_cycles(words: int, *, seed: int = 0) -> NDArray[np.float32]:
    """Return arc scores whose best heads form a cycle, and again one each time that a cycle becomes one node."""
    scores = np.random.default_rng(seed).normal(size=(words + 1, words + 1)).astype(np.float32)
    scores[1:, 0] -= 50
    scores[np.arange(2, words + 1), np.arange(1, words)] += 10
    scores[np.arange(1, words), np.arange(2, words + 1)] += 5
    scores[1, 2] += 10
    return scores


def arcs_of(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the scores as Stanza's search expects them."""
    arcs = scores.astype(np.float64)
    np.fill_diagonal(arcs, -np.inf)
    arcs[0], arcs[0, 0] = -np.inf, 0
    return arcs


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_best_tree_of_nested_cycles_equals_that_of_stanza(seed: int) -> None:
    from stanza.models.common.chuliu_edmonds import chuliu_edmonds_one_root

    scores = nested_cycles(12, seed=seed)
    assert best_tree(scores).tolist() == np.asarray(chuliu_edmonds_one_root(arcs_of(scores))).tolist()


@pytest.mark.slow
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_addresses_are_those_of_stanza(text: str) -> None:
    from stanza.models.tokenization.utils import MASK_RE

    assert list(find_addresses(text)) == [match.span() for match in MASK_RE.finditer(text)]


@pytest.mark.parametrize("run", ["a", "aA", "A", "-", "a-", "a.", "/", "1", "http://", "www.", "a@"])
@pytest.mark.parametrize("before", ["@ ", "see www.a.org "])
def test_addresses_in_a_long_run_are_found_in_linear_time(run: str, before: str) -> None:
    text = before + run * (60_000 // len(run))
    assert processor_seconds(lambda: list(find_addresses(text))) < 1.0


@pytest.fixture(scope="module")
def parser() -> StanzaParser:
    return StanzaParser(ParserConfig())


@pytest.mark.slow
@pytest.mark.parametrize("text", ["(" * 4_000, "@ " + "a" * 40_000])
def test_long_run_of_one_character_is_parsed_at_the_usual_speed(parser: StanzaParser, text: str) -> None:
    document = Document(doc_id="run", text=text, source_uri="run", source_position=0)
    parsed: list[object] = []
    assert processor_seconds(lambda: parsed.extend(parser.parse([document]))) < 10.0
    assert isinstance(parsed[0], ParsedDocument)
