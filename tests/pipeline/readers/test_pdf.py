"""PDF files: text in paragraphs, pages, what is left out, and files that are damaged or hostile."""

import json
from collections.abc import Callable

import pytest
from concord_testing.documents import BROKEN_PAGE, PICTURE, Line, lines, pdf

from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers.files import Decoded
from concord.pipeline.readers.pdf import PdfReader
from concord.pipeline.readers.records import RecordError

ENCRYPTED = f"/ID[<00><00>]/Encrypt<</Filter/Standard/V 1/R 2/P -4/O<{'41' * 32}>/U<{'42' * 32}>>>"


def read(content: bytes, **settings: object) -> Decoded:
    return PdfReader().extract_checked(content, ReaderConfig.from_mapping(settings))


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


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "unreadable"),
        (b"%PDF-1.7\n", "unreadable"),
        (b"<html>", "unreadable"),
        (pdf(), "unreadable"),
        (pdf([]), "no_text_layer"),
        (pdf(BROKEN_PAGE, BROKEN_PAGE), "unreadable_page"),
        (pdf(lines("Secret."), trailer=ENCRYPTED), "encrypted"),
        (pdf(lines("A")).replace(b"/Count 1", b"/Count 900000"), "unpacks_too_far"),
    ],
)
def test_files_without_text_say_why(content: bytes, code: str) -> None:
    assert fault(content).code == code


def test_a_scanned_file_says_so_and_a_scanned_page_among_others_is_lost() -> None:
    assert str(fault(pdf([]))).startswith("scanned: no text layer")
    found = read(pdf(lines("One."), PICTURE))
    assert {lost.number: lost.error for lost in found.lost} == {2: "no_text_layer"}


def test_pages_that_share_one_long_text_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concord.pipeline.readers.files.ALWAYS_UNPACKED_BYTES", 1000)
    monkeypatch.setattr("concord.pipeline.readers.files.UNPACK_RATIO", 1)
    content = pdf(lines(*["word " * 20] * 20)).replace(b"/Count 1/Kids[4 0 R]", b"/Count 9/Kids[%s]" % (b"4 0 R " * 9))
    assert fault(content).code == "unpacks_too_far"
    monkeypatch.setattr("concord.pipeline.readers.files.UNPACK_RATIO", 100)
    assert fault(content, max_record_bytes=100).code == "record_too_large"


def test_what_the_file_says_of_itself_is_its_meta() -> None:
    info = "/Title(On Ada\\000)/Author(Charles)/CreationDate(D:20261128120000Z)/Producer(none)"
    found = read(pdf(lines("Text."), info=info))
    assert json.loads(found.meta or "") == {"title": "On Ada", "author": "Charles", "created": "2026-11-28"}
