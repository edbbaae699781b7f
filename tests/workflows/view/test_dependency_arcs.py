import re

import pytest

from concord.pipeline.output.collection import TokenRow
from concord.workflows.view.pages.text_layout import Tree, draw_tree, text_width


def token(text: str, head: int) -> TokenRow:
    relation = "root" if head == 0 else "nmod"
    return TokenRow(1, 0, 1, text, text, None, "NOUN", None, None, head, relation, "O", "O", 1.0, 0.0, False)


def sentence(*heads: int, words: list[str] | None = None) -> list[TokenRow]:
    texts = words or [f"word{number}" for number in range(1, len(heads) + 1)]
    return [token(text, head) for text, head in zip(texts, heads, strict=True)]


def tops(tree: Tree) -> list[int]:
    return [arc.y for arc in tree.arcs if arc.relation != "root"]


def test_draw_tree_draws_one_arc_per_word() -> None:
    tree = draw_tree(sentence(2, 0, 2, 3))
    assert [arc.relation for arc in tree.arcs] == ["nmod", "root", "nmod", "nmod"]
    assert [word.text for _, word in tree.words] == ["word1", "word2", "word3", "word4"]


def test_draw_tree_puts_an_arc_above_those_it_spans() -> None:
    outer, inner, innermost = tops(draw_tree(sentence(0, 4, 2, 1)))[2], *tops(draw_tree(sentence(0, 4, 2, 1)))[:2]
    assert outer < inner < innermost


def test_draw_tree_puts_crossing_arcs_at_different_heights() -> None:
    first, second = tops(draw_tree(sentence(3, 4, 0, 3)))[:2]
    assert first != second


def test_draw_tree_keeps_words_apart_and_inside_the_drawing() -> None:
    tree = draw_tree(sentence(2, 0, 2, words=["Antidisestablishmentarianism", "i", "\u6771\u4eac\u90fd\u5e81\u820e"]))
    middles = [middle for middle, _ in tree.words]
    halves = [text_width(word.text, 15.0) / 2 for _, word in tree.words]
    for left, right in ((0, 1), (1, 2)):
        assert middles[left] + halves[left] < middles[right] - halves[right]
    assert middles[0] - halves[0] > 0
    assert middles[-1] + halves[-1] < tree.width
    assert all(arc.y > 0 for arc in tree.arcs)


@pytest.mark.parametrize("heads", [(0,), (7, 0), (1, 1), (0, 0)])
def test_draw_tree_omits_heads_outside_the_sentence(heads: tuple[int, ...]) -> None:
    tree = draw_tree(sentence(*heads))
    assert len(tree.words) == len(heads)
    assert all(re.fullmatch(r"[MVHhlqz0-9 -]+", arc.line) for arc in tree.arcs)
