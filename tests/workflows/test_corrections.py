"""``concord corrections`` lists what became of corrections and imports them from files."""

from pathlib import Path

import pytest
from concord_testing.command_line import concord, concord_json
from concord_testing.exports import TEXTS, annotate_texts, write_texts

from concord.pipeline.corrections.correction import Correction, Mark, Seen, append_to_log, log_path
from concord.pipeline.exchange.export import export_collection
from concord.workflows.corrections import list_statuses

TEXT = TEXTS["plain"]
ANNA = Mark(start=0, end=10, type="PER", text="Anna Smith")


def correct(old: Mark | None, new: Mark | None, *, doc_id: str = "plain", who: str = "ada") -> Correction:
    return Correction.of(old, new, text=TEXT, seen=Seen(doc_id=doc_id, tagger="t", generation=0), who=who)


@pytest.mark.slow
def test_list_says_what_became_of_each(tmp_path: Path) -> None:
    source, output = write_texts(tmp_path / "texts.jsonl", TEXTS), tmp_path / "out"
    annotate_texts(source, output)
    assert list_statuses(output) == []
    assert "no corrections" in concord("corrections", "list", output).output
    first, second = correct(ANNA, None), correct(ANNA, ANNA.model_copy(update={"type": "ORG"}), who="bob")
    undone, lost = correct(None, ANNA), correct(ANNA, ANNA, doc_id="\u202egone\n")
    half = correct(None, Mark(start=1, end=3, type="PER", text="nn"))
    append_to_log(log_path(output), [first, undone, lost, half, second, undone.undone(who="ada")])
    states = {one.correction.id: (one.state, one.reason) for one in list_statuses(output)}
    assert [state for state, _ in states.values()] == ["overruled", "undone", "misfit", "misfit", "waiting"]
    assert "bob later" in states[first.id][1]
    assert "no document of this id" in states[lost.id][1]
    assert "word" in states[half.id][1]
    annotate_texts(source, output)
    assert [one.state for one in list_statuses(output)][-1] == "written"
    assert concord_json("corrections", "list", output)["counts"] == {
        "misfit": 2,
        "overruled": 1,
        "undone": 1,
        "written": 1,
    }
    shown = concord("corrections", "list", output)
    assert shown.exit_code == 0
    assert "Anna Smith: PER to ORG" in shown.output
    assert "\u202e" not in shown.output


@pytest.mark.slow
def test_list_shows_who_flagged_which_sentence_and_why(tmp_path: Path) -> None:
    source, output = write_texts(tmp_path / "texts.jsonl", TEXTS), tmp_path / "out"
    annotate_texts(source, output)
    words = Mark(start=0, end=len(TEXT), type="O", text=TEXT)
    flags = [
        correct(words, None, who=who).model_copy(update={"action": "flag", "comment": comment})
        for who, comment in (("ada", "whose \u202ename?"), ("bob", ""))
    ]
    append_to_log(log_path(output), [*flags, flags[1].undone(who="bob")])
    assert [(one.correction.who, one.state) for one in list_statuses(output)] == [("ada", "flagged"), ("bob", "undone")]
    shown = concord("corrections", "list", output).output
    row = next(line for line in shown.splitlines() if "flagged, whose" in line)
    assert all(part in row for part in ("plain", "flag", TEXT[:20], "name?", "ada"))
    assert "\u202e" not in shown
    assert "1 flagged, 1 undone" in shown
    assert "concord annotate writes" not in shown


def test_import_adds_to_the_log(tmp_path: Path) -> None:
    output = tmp_path / "out"
    annotate_texts(write_texts(tmp_path / "texts.jsonl", TEXTS), output)
    export_collection(output, tmp_path / "brat", to="brat")
    (tmp_path / "brat" / "plain.ann").write_text("T1\tORG 0 10\tAnna Smith\nT2\tORG 1 2\tn\n")
    arguments = ("corrections", "import", tmp_path / "brat", output)
    assert concord(*arguments).exit_code == 2
    dry = concord(*arguments, "--as", "ada", "--dry-run")
    assert dry.exit_code == 3
    assert "0 corrections would be added" in dry.output
    assert "2 corrections held back, for --accept-drops" in dry.output
    assert "Bob: no entity" in dry.output
    assert len(concord_json(*arguments, "--as", "ada", exit_code=3)["held_back"]) == 2
    assert not log_path(output).exists()
    done = concord_json(*arguments, "--as", "ada", "--accept-drops", exit_code=3)
    assert done["actions"] == {"drop": 1, "relabel": 1}
    assert [one.state for one in list_statuses(output)] == ["waiting", "waiting"]
