"""The model of text that all formats share: what stands between blocks, lines and words, and where parts begin."""

from collections.abc import Callable

import pytest

from concord.pipeline.documents import PAGE, Part
from concord.pipeline.readers.text import Gap, TextBuilder


def built(*steps: str | Gap | Callable[[TextBuilder], None], join_lines: bool = True) -> str:
    """Return the text after steps: what is written, what separates it, or a method."""
    text = TextBuilder()
    for step in steps:
        if isinstance(step, str):
            text.write(step)
        elif isinstance(step, Gap):
            text.separate(step)
        else:
            step(text)
    return text.built(join_lines=join_lines)[0]


def raised(mark: str) -> Callable[[TextBuilder], None]:
    return lambda text: text.write_raised(mark)


GLUE, GO_ON = TextBuilder.glue, TextBuilder.go_on


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (("Anna", "lena"), "Annalena"),
        (("\n Anna \t", "\n", " Lind\u00a0 "), "Anna Lind\u00a0"),
        (("Anna ", Gap.LINE, Gap.SPACE, " Lind"), "Anna\nLind"),
        ((Gap.BLOCK, "Anna", Gap.LINE, Gap.BLOCK, "Lind", Gap.BLOCK), "Anna\n\nLind"),
        (("Anna", Gap.SOFT_LINE, "Lind", Gap.LINE, "Bob"), "Anna Lind\nBob"),
        (("Phila-", Gap.SOFT_LINE, "delphia, ", "pre-", Gap.SOFT_LINE, "and"), "Philadelphia, pre- and"),
        (("Bos-", Gap.LINE, "ton"), "Boston"),
        (("Bos-", Gap.BLOCK, "ton"), "Bos-\n\nton"),
        (("O' ", GLUE, " Brien"), "O'Brien"),
        (("O'", Gap.LINE, GLUE, "Brien ", "left"), "O'Brien left"),
        (("Anna", GLUE, Gap.LINE, " Lind"), "Anna\nLind"),
        (("Anna", Gap.BLOCK, GLUE, "Lind"), "Anna\n\nLind"),
        (("Phila- ", GO_ON, "\ndelphia, Bos ", GO_ON, "ton"), "Philadelphia, Boston"),
        (("Berlin", raised("1"), ", 5 m", raised("2")), "Berlin 1, 5 m2"),
    ],
)
def test_gaps_are_as_on_a_page(steps: tuple[str | Gap | Callable[[TextBuilder], None], ...], expected: str) -> None:
    assert built(*steps) == expected


def test_lines_stay_where_they_are_not_to_be_joined() -> None:
    assert built("Bos-", Gap.SOFT_LINE, "ton", Gap.LINE, "Bob", join_lines=False) == "Bos-\nton\nBob"


def test_parts_begin_at_what_is_in_them() -> None:
    note, text = TextBuilder(), TextBuilder()
    note.write("See ")
    note.begin_part(PAGE, "3")
    note.write("there")
    for label, content in (("1", "to Phila-"), ("2", "delphia")):
        text.begin_part(PAGE, label)
        text.write(content)
        text.separate(Gap.SOFT_LINE)
    text.write_builder(note)
    text.write_builder(TextBuilder())
    text.begin_part(PAGE, "4")

    whole, parts = text.built(join_lines=True)

    assert whole == "to Philadelphia\n\nSee there"
    assert parts == (Part(PAGE, "1", 0), Part(PAGE, "2", 8), Part(PAGE, "3", 21), Part(PAGE, "4", 26))
