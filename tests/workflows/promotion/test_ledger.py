"""The ledger: a chain of lines in which every change is detected."""

import json
from dataclasses import replace

import pytest
from concord_testing.promoters import move

from concord.workflows.promotion.ledger import (
    BEGINNING,
    LONGEST_LINE,
    LONGEST_REASON,
    Entry,
    check_chain,
    line_hash,
    lines_of,
    next_number,
    read_line,
    tag_of,
    write_line,
)


def entry(went_to: int, *, came_from: int | None = None) -> Entry:
    return Entry.of(move(went_to, came_from=came_from), number=1, previous=BEGINNING)


def chain(*versions: int) -> list[str]:
    """Return the lines of successive moves to these versions."""
    lines: list[str] = []
    for number, version in enumerate(versions, start=1):
        previous = line_hash(lines[-1]) if lines else BEGINNING
        lines.append(write_line(Entry.of(move(version), number=number, previous=previous)))
    return lines


def broken_at(lines: list[str], champion: int | None) -> list[int]:
    return [found.line for found in check_chain(lines, champion=champion)]


def test_a_line_is_read_as_it_was_written() -> None:
    line = replace(entry(3, came_from=2), reason='ünder \n"quotes"', uses=4, forced=True)
    assert read_line(write_line(line)) == line


def test_an_intact_chain_has_no_break() -> None:
    assert broken_at(chain(1, 2, 1, 3), 3) == []
    assert broken_at([], None) == []


def test_a_champion_without_a_ledger_is_a_break() -> None:
    assert broken_at([], 7) == [0]


@pytest.mark.parametrize("changed", [1, 2, 3])
def test_a_changed_line_breaks_the_next(changed: int) -> None:
    lines = chain(1, 2, 3, 4)
    values = json.loads(lines[changed - 1]) | {"who": "eve@there"}
    lines[changed - 1] = json.dumps(values)
    assert broken_at(lines, 4) == [changed + 1]


def test_a_missing_line_is_named() -> None:
    lines = chain(1, 2, 3, 4)
    left = [lines[0], lines[2], lines[3]]
    assert broken_at(left, 4) == [2, 2]
    assert "a line is missing" in check_chain(left, champion=4)[0].message
    tags = {tag_of(number): lines[number - 1] for number in (1, 3)}
    assert (next_number(tags), next_number({})) == (4, 1)


def test_removing_the_last_line_is_detected_by_the_champion() -> None:
    assert broken_at(chain(1, 2, 3)[:2], 3) == [2]
    assert broken_at(chain(1, 2), None) == [2]


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"number": 2}', write_line(entry(2)).replace(f'"{BEGINNING}"', "null")]
)
def test_an_invalid_line_is_a_break(text: str) -> None:
    lines = chain(1, 2, 3)
    assert broken_at([lines[0], text, lines[2]], 3) == [2, 3]


def test_lines_are_found_among_tags_in_order() -> None:
    lines = chain(*range(1, 13))
    tags = {tag_of(number): line for number, line in reversed(list(enumerate(lines, start=1)))}
    assert lines_of(tags | {"concord.intent": "x", "owner": "me"}) == lines


def test_a_line_with_the_longest_reason_fits_a_tag() -> None:
    digest = "a" * 64
    longest = replace(
        entry(10**6, came_from=10**6),
        who="u" * 200,
        digest=digest,
        evidence=digest,
        evidence_place="runs:/" + digest,
        gate=digest,
        promotion_set=digest,
        uses=10**6,
        reason='"' * LONGEST_REASON,
    )
    assert len(write_line(longest)) <= LONGEST_LINE
    with pytest.raises(ValueError, match="5,000 characters at most"):
        write_line(replace(longest, reason="x" * LONGEST_LINE))
