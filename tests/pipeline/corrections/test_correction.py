"""The log of corrections: folding, two writers, killed writers, full disks, broken lines."""

import json
import logging
import resource
import signal
from pathlib import Path

import pytest
from concord_testing.runs import in_child

from concord.models.errors import ConfigError
from concord.pipeline.corrections.correction import (
    LOG_NAME,
    Correction,
    Mark,
    Seen,
    append_to_log,
    check_name,
    check_type,
    corrections_digest,
    current_corrections,
    extend_log,
    log_path,
    read_log,
)
from concord.pipeline.errors import InputError
from concord.pipeline.storage.object_stores import StorePath

TEXT = "Anna met Bob in Geneva."
ANNA = Mark(start=0, end=4, type="PER", text="Anna")
BOB = Mark(start=9, end=12, type="PER", text="Bob")
HOSTILE = ("", "a\nb\u2028c", '"}\n{"id":1}', "\u202eevil\x00", "e\u0301 \U0001f600", "../../etc", "x" * 5_000)


def correct(old: Mark | None, new: Mark | None, *, doc_id: str = "d", text: str = TEXT, who: str = "ada") -> Correction:
    return Correction.of(old, new, text=text, seen=Seen(doc_id=doc_id, tagger="t@1", generation=3), who=who)


def test_action_follows_from_the_marks() -> None:
    other = ANNA.model_copy(update={"type": "ORG"})
    actions = [correct(*marks).action for marks in ((ANNA, ANNA), (ANNA, other), (ANNA, None), (None, ANNA))]
    assert actions == ["accept", "relabel", "drop", "add"]
    kept = correct(None, BOB)
    assert (kept.before, kept.after, kept.generation) == (TEXT[:9], TEXT[12:], 3)


@pytest.mark.parametrize(
    ("old", "new"), [(None, None), (ANNA, BOB), (Mark(start=1, end=5, type="A", text="Anna"), None)]
)
def test_marks_that_make_no_correction_are_refused(old: Mark | None, new: Mark | None) -> None:
    with pytest.raises(ValueError):
        correct(old, new)


@pytest.mark.parametrize("label", ["", "A B", "A|B", "A=B", "A\n", "x" * 101])
def test_types_that_no_export_can_hold_are_refused(label: str) -> None:
    with pytest.raises(ValueError, match="entity type"):
        check_type(label)
    with pytest.raises(ValueError, match="printable"):
        check_name(label + "\n")


def test_log_returns_what_was_appended(tmp_path: Path) -> None:
    path = tmp_path / LOG_NAME
    assert read_log(path) == []
    made = [correct(ANNA, None, doc_id=doc_id) for doc_id in HOSTILE]
    marked = "\u2028\x00 \U0001f600\u202e"
    made.append(correct(None, Mark(start=0, end=5, type="\u00c4", text=marked), text=marked))
    append_to_log(path, made[:3])
    append_to_log(path, made[3:])
    append_to_log(path, [])
    assert read_log(path) == made
    assert path.read_bytes().count(b"\n") == len(made)


def test_undo_takes_back_a_line_and_can_be_taken_back() -> None:
    first, second = correct(ANNA, None), correct(BOB, BOB)
    undo = first.undone(who="bob")
    again = undone = undo.undone(who="ada")
    assert current_corrections([first, second]) == {"d": (first, second)}
    assert current_corrections([first, second, undo]) == {"d": (second,)}
    assert current_corrections([first, second, undo, again]) == {"d": (first, second)}
    assert current_corrections([first, undo]) == {}
    assert current_corrections([first, undo, again, undone.undone(who="bob")]) == {}


def test_digest_covers_what_decides_rows_and_nothing_else() -> None:
    one, other = correct(ANNA, None, who="ada"), correct(ANNA, None, who="bob")
    assert one.id != other.id
    assert corrections_digest([one]) == corrections_digest([other])
    assert corrections_digest([one]) != corrections_digest([correct(ANNA, ANNA)])
    assert corrections_digest([one]) != corrections_digest([one, correct(BOB, BOB)])


@pytest.mark.slow
def test_two_processes_write_at_once_and_no_line_is_lost(tmp_path: Path) -> None:
    path = tmp_path / LOG_NAME

    def write(who: str) -> None:
        for number in range(15):
            append_to_log(path, [correct(ANNA, None, doc_id=f"{who}{number}" * 900, who=who) for _ in range(3)])

    writers = [in_child(lambda who=who: write(who)) for who in ("ada", "bob")]  # type: ignore[misc]
    for writer in writers:
        writer.join()
    found = read_log(path)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert len(found) == 2 * 15 * 3
    own = [line.doc_id for line in found if line.who == "ada"]
    assert own == [f"ada{number}" * 900 for number in range(15) for _ in range(3)]
    # The lines of one call follow one another.
    assert all(len({line.doc_id for line in found[start : start + 3]}) == 1 for start in range(0, len(found), 3))


@pytest.mark.slow
def test_killed_writer_releases_its_lock(tmp_path: Path) -> None:
    path = tmp_path / LOG_NAME
    writer = in_child(lambda: append_to_log(path, [correct(ANNA, None)]), crash_at="write")
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    append_to_log(path, [correct(BOB, BOB)])
    assert [line.action for line in read_log(path)] == ["drop", "accept"]


@pytest.mark.parametrize("kept", [1, 40, -2])
def test_line_cut_short_is_ignored_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: int) -> None:
    path = tmp_path / LOG_NAME
    append_to_log(path, [correct(ANNA, None)])
    append_to_log(path, [correct(BOB, None)])
    first, second, _ = path.read_bytes().split(b"\n")
    path.write_bytes(first + b"\n" + second[:kept])
    with caplog.at_level(logging.WARNING):
        assert [line.old for line in read_log(path)] == [ANNA]
    assert "line 2: cut short" in caplog.text
    append_to_log(path, [correct(BOB, BOB)])
    assert [line.action for line in read_log(path)] == ["drop", "accept"]
    assert path.read_bytes().startswith(first + b"\n" + second[:kept])


def test_step_counts_whole_or_not_at_all_wherever_its_writer_is_killed(tmp_path: Path) -> None:
    path = tmp_path / LOG_NAME
    before, after = correct(BOB, None), correct(BOB, BOB)
    step = [correct(ANNA, None, doc_id=f"d{number}") for number in range(10)]
    step[5] = before.undone(who="ada")
    append_to_log(path, [before])
    start = path.stat().st_size
    append_to_log(path, step)
    whole = path.read_bytes()
    assert read_log(path) == [before, *step]
    ends = [place for place in range(start, len(whole) + 1) if place == start or whole[place - 1 : place] == b"\n"]
    assert len(ends) == 11
    for kept in sorted({*range(start, len(whole), 397), *ends, *(end - 1 for end in ends[1:])}):
        path.write_bytes(whole[:kept])
        expected = [before, *step] if kept >= len(whole) - 1 else [before]
        assert read_log(path) == expected, kept
        append_to_log(path, [after])
        again = [line.model_copy(update={"id": f"{line.id}-again"}) for line in step[:3]]
        append_to_log(path, again)
        assert read_log(path) == [*expected, after, *again], kept


def test_last_line_without_a_line_end_counts_if_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / LOG_NAME
    append_to_log(path, [correct(ANNA, None)])
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert len(read_log(path)) == 1
    append_to_log(path, [correct(BOB, None)])
    assert [line.old for line in read_log(path)] == [ANNA, BOB]


@pytest.mark.slow
def test_full_disk_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / LOG_NAME
    append_to_log(path, [correct(ANNA, None)])
    content = path.read_bytes()

    def write_with_little_space() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(content) + 500, len(content) + 500))
        append_to_log(path, [correct(ANNA, None), correct(BOB, None), correct(BOB, BOB)])

    writer = in_child(write_with_little_space)
    writer.join()
    assert writer.exitcode == 75
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("nonsense", "line 2: expected a correction"),
        ("[]", "line 2: expected a correction"),
        ("\x00\x00", "line 2: expected a correction"),
        ('{"id": "x"}', "line 2: expected a correction.*action"),
        (json.dumps({"id": "x", "doc_id": "d", "who": "a", "when": "", "action": "eat"}), "line 2.*action"),
        (json.dumps({"id": "x", "doc_id": "d", "who": "a", "when": "", "action": "drop"}), "line 2.*drop"),
        (
            json.dumps({"id": "x", "doc_id": "d", "who": "a", "when": "", "action": "undo", "undoes": "y"}),
            "line 2: undoes 'y'",
        ),
    ],
)
def test_broken_lines_are_named(tmp_path: Path, line: str, fault: str) -> None:
    path = tmp_path / LOG_NAME
    append_to_log(path, [correct(ANNA, None)])
    own = path.read_text()
    path.write_text(f"{own}{line}\n\n")
    with pytest.raises(InputError, match=fault):
        read_log(path)
    path.write_text(own + own)
    with pytest.raises(InputError, match="line 2: expected an id of its own"):
        read_log(path)


def test_log_is_beside_the_tables_of_a_folder(tmp_path: Path) -> None:
    assert log_path(tmp_path) == tmp_path / "corrections.jsonl"
    with pytest.raises(ConfigError, match="in a folder"):
        log_path(StorePath.parse("s3://bucket/out"))


@pytest.mark.slow
def test_log_is_extended_by_what_it_says_at_that_moment(tmp_path: Path) -> None:
    path = tmp_path / LOG_NAME

    def extend(who: str) -> None:
        # Without the lock two writers would often see the same number of lines.
        for _ in range(10):
            extend_log(path, lambda log: [correct(ANNA, ANNA, who=f"{who} {len(log)}")])

    writers = [in_child(lambda who=who: extend(who)) for who in ("ada", "bob", "cy")]  # type: ignore[misc]
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    assert [int(line.who.split()[1]) for line in read_log(path)] == list(range(30))
    assert extend_log(path, lambda log: []) == []


def test_a_new_log_is_in_its_folder_even_if_nothing_is_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("concord.pipeline.corrections.correction.sync", synced.append)

    def refuse(log: list[Correction]) -> list[Correction]:
        assert synced == [tmp_path]
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        extend_log(tmp_path / LOG_NAME, refuse)
    append_to_log(tmp_path / LOG_NAME, [correct(ANNA, None)])
    append_to_log(tmp_path / LOG_NAME, [correct(ANNA, None)])
    assert synced == [tmp_path] * 2
