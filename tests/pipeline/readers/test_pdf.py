"""PDF files: text in paragraphs, pages, what is left out, and files that are damaged or hostile."""

import json
from collections.abc import Callable, Sequence

import pytest
from concord_testing.documents import BROKEN_PAGE, PICTURE, Line, lines, pdf

from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers.base import extract_checked
from concord.pipeline.readers.files import Decoded
from concord.pipeline.readers.pdf import PdfReader
from concord.pipeline.readers.records import RecordError

# A font with the accents of TeX's.
ACCENTS = "caron 2/dotlessi 3/hungarumlaut 4/acute 5/dieresis 6/cedilla"
ENCRYPTED = f"/ID[<00><00>]/Encrypt<</Filter/Standard/V 1/R 2/P -4/O<{'41' * 32}>/U<{'42' * 32}>>>"


def read(content: bytes, **settings: object) -> Decoded:
    return extract_checked(PdfReader().extract, content, ReaderConfig.from_mapping(settings), "file")


def fault(content: bytes, **settings: object) -> RecordError:
    with pytest.raises(RecordError) as found:
        read(content, **settings)
    return found.value


def page_texts(found: Decoded) -> dict[str, str]:
    parts = found.parts or ()
    ends = [*(part.start for part in parts[1:]), len(found.text)]
    return {str(part): found.text[part.start : end] for part, end in zip(parts, ends, strict=True)}


def test_lines_of_a_paragraph_are_joined_and_words_that_are_broken_between_them() -> None:
    found = read(
        pdf(
            lines(
                "The fleet left the harbour of Wash-",
                "ington on Monday. Mr. John Roose-",
                "velt, a well-known man, met the well-",
                "known Anglo-",
                "American officers.",
            )
        )
    )

    assert found.text == (
        "The fleet left the harbour of Washington on Monday. Mr. John Roosevelt, a well-known man, met the well-known "
        "Anglo-American officers."
    )


def test_a_word_broken_between_pages_is_one_word_and_the_next_page_begins_within_it() -> None:
    found = read(pdf(lines("Mr. John Roosevelt spoke in Phila-"), lines("delphia on Monday.")))

    assert found.text == "Mr. John Roosevelt spoke in Philadelphia on Monday."
    assert page_texts(found) == {"p. 1": "Mr. John Roosevelt spoke in Phila", "p. 2": "delphia on Monday."}


def test_without_join_lines_every_line_stays() -> None:
    found = read(pdf(lines("They spoke in Phila-", "delphia."), lines("End.")), join_lines=False)

    assert found.text == "They spoke in Phila-\ndelphia.\n\nEnd."
    assert page_texts(found)["p. 2"] == "End."


@pytest.mark.parametrize(
    ("page", "text"),
    [
        # A wider gap, an indent after a full stop, and a heading in larger letters.
        (
            [*lines("One long line of text,", "two."), *lines("Three.", top=650)],
            "One long line of text, two.\n\nThree.",
        ),
        ([(72, 700, "One long line of text."), (90, 688, "Two long lines of text")], None),
        # The next word would have fitted, so somebody ended the line there.
        (lines("Ada King", "Charles Babbage of London"), "Ada King\nCharles Babbage of London"),
        (lines("Ada slept.", "Charles Babbage of London"), "Ada slept.\n\nCharles Babbage of London"),
        # Another column, in which the sentence goes on.
        ([*lines("They left for", "London and"), *lines("then for Paris", "again.", left=320)], None),
    ],
)
def test_paragraphs_are_seen_from_the_places_of_lines(page: list[Line], text: str | None) -> None:
    expected = {
        "One long line of text.": "One long line of text.\n\nTwo long lines of text",
        "They left for": "They left for London and then for Paris again.",
    }
    assert read(pdf(page)).text == (text or expected[page[0][2]])


def test_running_lines_stay_once_and_page_numbers_go() -> None:
    def page(number: int) -> list[Line]:
        head, body, foot = (
            (250, 760, "The Fleet Review"),
            lines(f"Ship {number * 7} came."),
            (300, 30, f"- {number + 4} -"),
        )
        return [head, *body, foot]

    found = read(pdf(*map(page, range(1, 5))))

    assert found.text == "The Fleet Review\n\nShip 7 came.\n\nShip 14 came.\n\nShip 21 came.\n\nShip 28 came."
    assert json.loads(found.meta or "")["running_lines"] == ["The Fleet Review", "- 5 -"]


@pytest.mark.parametrize(
    "head",
    [
        lambda number: (250, 760 - 10 * number, "At another place"),
        lambda number: (250, 760, f"Invoice {number * number}"),
        lambda number: (250, 760, "On half of the pages" if number % 2 else "On the other half"),
    ],
)
def test_lines_that_are_not_surely_running_stay(head: Callable[[int], Line]) -> None:
    found = read(pdf(*([head(number), *lines("Text.")] for number in range(1, 5))))

    assert found.text.count("Text.") == 4
    assert all(head(number)[2] in text for number, text in enumerate(page_texts(found).values(), start=1))
    assert found.meta is None


def test_a_page_that_cannot_be_read_is_lost_alone() -> None:
    found = read(pdf(lines("One."), BROKEN_PAGE, lines("Three.")))

    assert page_texts(found) == {"p. 1": "One.\n\n", "p. 3": "Three."}
    assert {lost.number: lost.error for lost in found.lost} == {2: "unreadable_page"}


def test_ligatures_are_letters() -> None:
    content = pdf(lines("the $rst o@ce"))
    encoded = content.replace(b"/Encoding/WinAnsiEncoding", b"/Encoding<</Differences[36/fi 64/uniFB03]>>")
    assert read(encoded).text == "the first office"


def drawn(*texts: tuple[float, float, float, str]) -> bytes:
    """Return a content stream of texts: the place of the first letter, the size of the font, and the text."""
    return "".join(f"BT /F1 {size} Tf {x} {y} Td ({text}) Tj ET\n" for x, y, size, text in texts).encode("cp1252")


def shown(stream: bytes) -> str:
    return read(pdf(stream)).text


RAISED, LEVEL = "6 Tf 4 Ts", "10 Tf 0 Ts"


@pytest.mark.parametrize(
    ("before", "mark", "after", "text"),
    [
        ("Grace Hopper", "1", " spoke.", "Grace Hopper 1 spoke."),
        ("Grace Hopper", "2,3", " spoke.", "Grace Hopper 2,3 spoke."),
        ("They met in Oslo.", "4", "", "They met in Oslo. 4"),
        ("Sofia Neri", "a,*", ", Ann", "Sofia Neri a,*, Ann"),
        ("Sofia Neri", "b", ", Ann", "Sofia Neri b, Ann"),
        ("", "a", "University of Oslo", "a University of Oslo"),
        ("Ann Lee", "12", " spoke", "Ann Lee 12 spoke"),
        ("", "1", "Institute of Physics", "1 Institute of Physics"),
        # Exponents, ordinals and numbers that are not raised.
        ("20 km", "2", " of land", "20 km2 of land"),
        ("the 44", "th", " of them", "the 44th of them"),
        ("King Louis XVI", "e", " du nom", "King Louis XVIe du nom"),
        ("Grace Hopper1 in G20", "2", "", "Grace Hopper1 in G202"),
    ],
)
def test_marks_of_notes_are_set_apart_by_size_and_place(before: str, mark: str, after: str, text: str) -> None:
    stream = f"BT /F1 {LEVEL} 72 700 Td ({before}) Tj /F1 {RAISED} ({mark}) Tj /F1 {LEVEL} ({after}) Tj ET"
    assert shown(stream.encode()) == text


@pytest.mark.parametrize("is_drawn_last", [False, True])
@pytest.mark.parametrize(
    ("initial", "first", "begin"),
    [("H", "amburg is a town where many ships", "Hamburg is"), ("A", "town where no town was before, and", "A town")],
)
def test_a_large_first_letter_belongs_to_the_word_beside_it(
    initial: str, first: str, begin: str, *, is_drawn_last: bool
) -> None:
    large = [(72, 676, 40, initial)]
    lines = [(110, 700, 10, first), (110, 688, 10, "of the north lie, and each of them"), (72, 664, 10, "is large.")]
    found = shown(drawn(*lines, *large) if is_drawn_last else drawn(*large, *lines))
    assert found.startswith(begin)
    assert found.count(initial) == 1


def test_accents_belong_to_the_letters_that_they_are_drawn_at() -> None:
    page = (
        b"BT /F1 10 Tf 72 700 Td [(Jos) 0 (\\004) 333 (e \\001) 430 (Capek, Erd) -110 (\\003) 440 (os,)] TJ "
        b"0 -12 Td [(l\\004ocean, Garc) 27.5 (\\004) 305.5 (\\002a)] TJ ET"
    )
    found = read(pdf(page).replace(b"/Encoding/WinAnsiEncoding", f"/Encoding<</Differences[1/{ACCENTS}]>>".encode()))
    assert found.text == "José Čapek, Erdős, l´ocean, García"


def test_what_the_crop_box_cuts_off_is_not_read() -> None:
    page = drawn((40, 700, 10, "Ada King spoke."), (340, 700, 10, "Grace Hopper went."), (40, 900, 10, "Above."))
    content = pdf(page, page).replace(b"/MediaBox[0 0 600 800]", b"/MediaBox[0 0 600 800]/CropBox[0 0 300 800]", 1)
    assert read(content).text == "Ada King spoke.\n\nAda King spoke.\n\nGrace Hopper went."


@pytest.mark.parametrize(
    ("page", "text"),
    [
        # Cells of rows, which neither sentences nor names run over.
        (
            [(72, 700, "Ada King"), (200, 700, "Grace Hopper"), (72, 688, "Bo Li"), (200, 688, "von Braun")],
            "Ada King\n\nGrace Hopper\n\nBo Li\n\nvon Braun",
        ),
        # The number or bullet of an item is no cell.
        ([(72, 700, "1."), (90, 700, "Ada King spoke.")], "1. Ada King spoke."),
        ([(72, 700, "•"), (90, 700, "Ada King spoke.")], "• Ada King spoke."),
    ],
)
def test_cells_are_seen_from_the_room_between_them(page: list[Line], text: str) -> None:
    assert read(pdf(page)).text == text


def test_a_line_that_is_spread_out_to_both_margins_has_no_cells() -> None:
    page = b"BT /F1 10 Tf 12 Tw 72 700 Td (Grace Hopper of Arlington) Tj 0 Tw 0 -12 Td (went to the town.) Tj ET"
    assert shown(page) == "Grace Hopper of Arlington went to the town."


@pytest.mark.parametrize("counted", [(1, 5, 10, 15), range(1, 17)])
def test_numbers_of_lines_are_left_out(counted: Sequence[int]) -> None:
    text = "members of the council met in the town of Oslo on that day"
    numbers = [(50, 712 - 12 * number, str(number)) for number in counted]
    assert read(pdf([*numbers, *lines(*[text] * 16)])).text == " ".join([text] * 16)
    inside = [f"{number} {text}" if number in counted else text for number in range(1, 17)]
    assert read(pdf(lines(*inside))).text == " ".join([text] * 16)


def test_numbers_of_items_stay() -> None:
    items = [f"{number} Members of the council of Oslo" for number in range(1, 9)]
    assert "8 Members" in read(pdf(lines(*items))).text
    assert "2 members" in read(pdf(lines(*[item.lower() for item in items[:3]], *["and others"] * 40))).text


def test_turned_text_is_read_along_its_lines() -> None:
    turned = b"BT /F1 10 Tf 0 1 -1 0 100 300 Tm (Grace Hopper went to the town of) Tj 0 -12 Td (Arlington.) Tj ET\n"
    assert shown(turned + drawn((200, 500, 10, "Bo Li."))) == "Grace Hopper went to the town of Arlington.\n\nBo Li."


@pytest.mark.parametrize(
    "scale", [b"1 0 0 1 0 0 cm /F1 1 Tf 10 0 0 10 %d %d Tm", b".1 0 0 .1 0 0 cm /F1 100 Tf %d0 %d0 Td"]
)
def test_sizes_are_those_on_the_page(scale: bytes) -> None:
    texts = b"The fleet left the harbour of Arling-", b"ton, and went on."
    stream = b"".join(b"q BT %s (%s) Tj ET Q " % (scale % (72, 700 - 12 * row), text) for row, text in enumerate(texts))
    assert shown(
        stream.replace(b"q BT " + scale[: scale.index(b"cm") + 2], b"q " + scale[: scale.index(b"cm") + 2] + b" BT")
    ) == ("The fleet left the harbour of Arlington, and went on.")


def test_forms_of_other_programs_are_said() -> None:
    notice = lines("Please wait...", "If this message is not eventually replaced by the", "proper contents")
    assert fault(pdf(notice)).code == "xfa_form"


def test_each_page_begins_where_its_text_does() -> None:
    pages = [
        lines(f"Grace Hopper{number} and the ´ men of Wash-", f"ington went to town {number}.") for number in range(5)
    ]
    found = read(pdf(*pages))
    assert [found.text[part.start :][:13] for part in found.parts or ()] == [
        f"Grace Hopper{number}" for number in range(5)
    ]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "unreadable"),
        (b"%PDF-1.7\n", "unreadable"),
        (b"<html>", "unreadable"),
        (pdf(), "unreadable"),
        (pdf([]), "no_text"),
        # Letters that only its font knows.
        (pdf(lines("$$")).replace(b"/WinAnsiEncoding", b"<</Differences[36/uniE001]>>"), "no_text"),
        (pdf(PICTURE), "no_text_layer"),
        (pdf(BROKEN_PAGE, BROKEN_PAGE), "unreadable_page"),
        (pdf(lines("Secret."), trailer=ENCRYPTED), "encrypted"),
        (pdf(lines("A")).replace(b"/Count 1", b"/Count 900000"), "unpacks_too_far"),
    ],
)
def test_files_without_text_say_why(content: bytes, code: str) -> None:
    assert fault(content).code == code


def test_a_scanned_file_says_so_and_a_scanned_page_among_others_is_lost() -> None:
    assert str(fault(pdf(PICTURE))).startswith("scanned: no text layer")
    found = read(pdf(lines("One."), PICTURE))
    assert {lost.number: lost.error for lost in found.lost} == {2: "no_text_layer"}


def test_pages_that_share_one_long_text_are_bounded() -> None:
    content = pdf(lines(*["word " * 20] * 20)).replace(b"/Count 1/Kids[4 0 R]", b"/Count 9/Kids[%s]" % (b"4 0 R " * 9))
    assert fault(content, max_record_bytes=9000).code == "record_too_large"


def test_what_the_file_says_of_itself_is_its_meta() -> None:
    info = "/Title(On Ada\\000)/Author(Charles)/CreationDate(D:20261128120000Z)/Producer(none)"
    found = read(pdf(lines("Text."), info=info))
    assert json.loads(found.meta or "") == {"title": "On Ada", "author": "Charles", "created": "2026-11-28"}
