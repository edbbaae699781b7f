"""``concord learn``: a tagger trained further on corrections, once, whatever happens meanwhile."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from concord_testing.checkout import CHECKOUT
from concord_testing.finished_runs import write_run
from concord_testing.runs import in_child

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import tagger_digest
from concord.models.data.sentence import Sentence
from concord.pipeline.corpora.read_corpus import read_gold
from concord.pipeline.corrections.correction import Correction, Mark, Seen
from concord.pipeline.corrections.log import append_to_log, log_path
from concord.workflows.cli.main import main
from concord.workflows.corpora.provenance import find_overlap, read_provenance
from concord.workflows.registry import mlflow_client
from concord.workflows.registry.model_versions import resolve
from concord.workflows.registry.resolve_tagger import find_tagger
from concord.workflows.training import calibrate, train

pytestmark = pytest.mark.slow

EXAMPLES = CHECKOUT / "examples/train"
DEV, PROMOTION = EXAMPLES / "dev.conllu", EXAMPLES / "promotion.conll"
TEXT = "Zorba Quux saw Geneva . The Quux firm of Leeds fell silent on Monday ."
DOCUMENTS = {
    "one": ["Zorba Quux saw Geneva|B-PER .", "The Quux firm of Leeds|B-LOC fell silent on Monday ."],
    "two": ["Nobody slept ."],
}


def concord(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


def learned(*arguments: object) -> dict[str, Any]:
    result = concord("learn", *arguments, "--json")
    assert result.exit_code == 0, result.output
    values: dict[str, Any] = json.loads(result.stdout)
    return values


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A collection with two corrections in one sentence of its first document."""
    output = write_run(tmp_path / "out", DOCUMENTS, keep_text=True)
    correct(output, "Geneva", "PER", "LOC")
    correct(output, "Zorba Quux", None, "PER")
    return output


def correct(output: Path, surface: str, old: str | None, new: str | None) -> None:
    start = TEXT.index(surface)
    before, after = (
        None if kind is None else Mark(start=start, end=start + len(surface), type=kind, text=surface)
        for kind in (old, new)
    )
    seen = Seen(doc_id="one", tagger="tagger-x", generation=0)
    append_to_log(log_path(output), [Correction.of(before, after, text=TEXT, seen=seen, who="ada")])


@pytest.fixture
def champion(store: Path, train_file: Path) -> str:
    """A registered version of a tiny tagger, trained on the sample corpus in a new store."""
    settings = ["--set", "fit.epochs=8", "--set", "fit.batch_sentences=4", "--set", "data.test=null"]
    assert concord("train", train_file, *settings, "-o", store / "runs/first").exit_code == 0
    return "models:/tiny/1"


@pytest.fixture
def bundle(tmp_path: Path, train_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundle of a training of one epoch that is not registered, in its folder; it is the current one."""
    monkeypatch.chdir(tmp_path)
    settings = ["--set", "fit.epochs=1", "--set", "data.test=null", "--no-tracking", "-o", "runs/first"]
    assert concord("train", train_file, *settings).exit_code == 0
    return Path("runs/first/bundle")


def test_corrections_become_a_version_once(output: Path, champion: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "LEAST_ENTITIES", 1)
    arguments = [output, "--model", champion, "--calibrate", PROMOTION, "--test", PROMOTION, "--set", "fit.epochs=2"]
    values = learned(*arguments)
    assert values["registered"] == "models:/tiny/2"
    assert (values["corrections"], values["sentences_looked_at"], values["words_looked_at"]) == (2, 1, 5)
    assert values["documents"] == ["one"]
    assert values["rehearsed"] == [{"path": str(EXAMPLES / "train.conllu"), "weight": 1.0}]
    folder = Path(values["folder"])
    (document,) = read_gold(folder / "corrected.conllu")
    assert document[0].labels == ("B-PER", "I-PER", "O", "B-LOC", "O")
    assert document[1].known == (False,) * 10
    bundle = Path(values["bundle"])
    assert load_tagger(bundle).calibration is not None
    assert values["digest"] == tagger_digest(bundle) == resolve("models:/tiny/2").digest
    assert values["comparison"]["second"]["digest"] == values["digest"]

    provenance = read_provenance(bundle)
    assert provenance is not None
    assert provenance.is_complete
    assert [teacher.digest for teacher in provenance.teachers] == [resolve(champion).digest]
    assert find_overlap(provenance, [document]).seen == {"train": 1}

    run = mlflow_client.open_client().get_run(resolve("models:/tiny/2").run_id)
    assert run.data.tags["concord.corrections"] == values["corrections_digest"]
    assert run.data.tags["concord.champion"] == resolve(champion).digest

    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != ".lock"}

    before = times()
    again = concord("learn", *arguments)
    assert again.exit_code == 0
    assert "learned before" in again.stdout
    assert "concord promote tiny 2" in again.stdout
    assert times() == before
    assert resolve("models:/tiny/2").run_id == run.info.run_id

    correct(output, "Leeds", "LOC", "LOC")
    further = learned(output, "--model", "models:/tiny/2", "--set", "fit.epochs=1")
    assert further["registered"] == "models:/tiny/3"
    # The corrections that it has learned already are read from the log again, if they still count.
    assert [corpus["path"] for corpus in further["rehearsed"]] == [str(EXAMPLES / "train.conllu")]
    assert further["corrections"] == 3


def test_killed_learning_ends_as_an_undisturbed_one(output: Path, bundle: Path) -> None:
    arguments = [output, "--model", bundle, "--no-tracking", "--threads", 1, "--set", "fit.epochs=3"]
    undisturbed = learned(*arguments, "-o", "runs/undisturbed")

    def killed() -> None:
        train._report_epoch = lambda *_: os._exit(9)
        concord("learn", *arguments, "-o", "runs/killed")

    process = in_child(killed)
    process.join(timeout=300)
    assert process.exitcode == 9
    assert not Path("runs/killed/result.json").exists()
    continued = learned(*arguments, "-o", "runs/killed")
    assert continued["digest"] == undisturbed["digest"]
    assert continued["epochs"] == 3
    correct(output, "Leeds", "LOC", "LOC")
    result = concord("learn", *arguments, "-o", "runs/killed")
    assert result.exit_code == 2
    assert "contains another learning" in result.output


def test_learning_refuses_what_it_cannot_learn(output: Path, tiny_bundle: Path, bundle: Path) -> None:
    def refused(*arguments: object) -> str:
        result = concord("learn", *arguments, "--no-tracking")
        assert result.exit_code != 0, result.output
        return result.output

    nothing_known = refused(output, "--model", tiny_bundle)
    assert "expected corpora to rehearse (--rehearse) and corpora that choose the epoch (--dev)" in nothing_known
    assert "--no-rehearsal" in nothing_known
    alone = refused(output, "--model", tiny_bundle, "--no-rehearsal")
    assert "expected corpora that choose the epoch (--dev), got none" in alone
    assert "rehears" not in alone.partition("Error")[2]
    assert "exclude each other" in refused(output, "--model", tiny_bundle, "--no-rehearsal", "--rehearse", DEV)
    assert "has not seen, got of 3 documents 3" in refused(output, "--model", bundle, "--calibrate", DEV)
    assert "expected a key of the training" in refused(output, "--model", bundle, "--set", "model.x=1")
    correct(output, "Monday", None, "DATE")
    dropped = learned(output, "--model", bundle, "--labels", "DATE=", "--no-tracking", "-o", "runs/a")
    assert (dropped["corrections"], dropped["further_types"]) == (3, [])
    (output / "corrections.jsonl").unlink()
    assert "found none; make some" in refused(output, "--model", bundle)


DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Saturday", "Sunday")


@pytest.fixture
def dated(tmp_path: Path) -> Path:
    """A collection in which somebody marked days as of a type that no tagger knows."""
    verbs = ("slept", "fell silent", "left", "returned")
    texts = {f"{day} {verb}": f"Zorba Quux {verb} on {day} ." for day in DAYS for verb in verbs}
    output = write_run(tmp_path / "dated", {name: [text] for name, text in texts.items()}, keep_text=True)
    for name, text in texts.items():
        day, seen = name.split()[0], Seen(doc_id=name, tagger="tagger-x", generation=0)
        mark = Mark(start=text.index(day), end=text.index(day) + len(day), type="DATE", text=day)
        append_to_log(log_path(output), [Correction.of(None, mark, text=text, seen=seen, who="ada")])
    return output


def test_a_new_type_is_learned_from_corrections(dated: Path, champion: str, tmp_path: Path) -> None:
    settings = ["--set", "fit.epochs=12", "--no-tracking"]
    result = concord("learn", dated, "--model", champion, *settings, "-o", tmp_path / "dates")
    assert result.exit_code == 0, result.output
    assert "examples    DATE 24 (new)\n" in result.stdout
    assert "DATE: no entity of this type in train/dev.conllu" in result.stderr
    values = json.loads((tmp_path / "dates/learning.json").read_bytes())["answer"]["values"]
    assert values["further_types"] == ["DATE"]
    assert values["best"]["epoch"] == 12
    assert values["rehearsed"][0]["lacks"] == ["DATE"]
    learner, tagger = load_tagger(find_tagger(champion).folder), load_tagger(tmp_path / "dates/bundle")
    assert tagger.entity_types == (*sorted({"DATE", *learner.entity_types}),)
    sentence = Sentence(words=("Zorba", "Quux", "slept", "on", "Sunday", "."))
    ((prediction,),) = tagger.predict_documents([[sentence]])
    assert prediction.labels[2:] == ("O", "O", "B-DATE", "O")

    # Corpora that lack the type keep it open when the tagger learns again.
    again = ["learn", dated, "--model", tmp_path / "dates/bundle", *settings, "-o", tmp_path / "again"]
    result = concord(*again, "--json")
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert (values["further_types"], values["best"]["epoch"]) == ([], 12)
    assert values["rehearsed"][0]["lacks"] == ["DATE"]


def test_a_bundled_tagger_says_which_corpora_it_has_seen(output: Path) -> None:
    result = concord("learn", output, "--model", "entities_multi", "--labels", "DATE=")
    assert result.exit_code == 2
    provenance = read_provenance(find_tagger("entities_multi").folder)
    assert provenance is not None
    for part in provenance.parts:
        if part.role != "calibration":
            assert ", ".join(file.name for file in part.files) in result.output
    assert "go on without a rehearsal by --no-rehearsal" in result.output
    assert "for --dev a small corpus of your own documents is enough" in result.output


@pytest.mark.parametrize("gate", [True, False])
def test_the_printed_command_promotes_the_version(
    output: Path, champion: str, gate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_client.tracking_uri())
    folder = Path("runs/my learning").absolute()
    if gate:
        monkeypatch.chdir(CHECKOUT)
    test = [] if gate else ["--test", PROMOTION]
    settings = ["-o", folder, "--name", "my tagger", "--set", "fit.epochs=1"]
    learning = concord("learn", output, "--model", champion, *settings, *test)
    assert learning.exit_code == 0, learning.output
    command = learning.stdout.partition("promote it  ")[2].strip()
    assert ("--gate" in command) is not gate
    promoted = concord(*shlex.split(command)[1:])
    assert promoted.exit_code == 0, promoted.output
    assert "Champion of my tagger: version 1 (there was none)" in promoted.stdout


def test_without_documents_for_a_gate_no_command_is_printed(output: Path, champion: str) -> None:
    learning = concord("learn", output, "--model", champion, "--set", "fit.epochs=1")
    assert "promote it  name documents that no training has seen in a gate" in learning.stdout
    assert "concord promote tiny" not in learning.stdout


def test_a_changed_list_of_terms_is_another_learning(
    output: Path, train_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    terms, texts = tmp_path / "terms.jsonl", tmp_path / "texts.conll"
    terms.write_text('{"label": "LOC", "pattern": "Leeds"}\n')
    texts.write_text("Leeds O\nslept O\n. O\n\n")
    settings = ["--set", f"data.terms={terms}", "--set", f"data.unlabelled={texts}", "--set", "data.test=null"]
    assert (
        concord("train", train_file, *settings, "--set", "fit.epochs=1", "--no-tracking", "-o", "runs/a").exit_code == 0
    )
    arguments = ["learn", output, "--model", "runs/a/bundle", "--set", "fit.epochs=1", "--no-tracking", "-o", "runs/b"]
    assert concord(*arguments).exit_code == 0
    assert "learned before" in concord(*arguments).stdout
    terms.write_text('{"label": "ORG", "pattern": "Leeds"}\n')
    assert "contains another learning" in concord(*arguments).output
    terms.unlink()
    assert f"left out: {texts}, {terms}" in concord(*arguments).output


def test_changed_corpora_are_not_rehearsed(output: Path, store: Path, train_file: Path) -> None:
    own = store / "own.conllu"
    own.write_bytes((EXAMPLES / "train.conllu").read_bytes())
    settings = ["--set", f"data.train={own}", "--set", "data.test=null", "--no-tracking", "-o", "runs/first"]
    assert concord("train", train_file, *settings).exit_code == 0
    own.write_bytes((EXAMPLES / "dev.conllu").read_bytes())
    result = concord("learn", output, "--model", "runs/first/bundle", "--no-tracking")
    assert result.exit_code == 2
    assert "gone or changed since bilstm_crf was trained, and left out" in result.output
    alone = ["--no-rehearsal", "--set", "fit.epochs=1", "--no-tracking"]
    assert learned(output, "--model", "runs/first/bundle", *alone)["rehearsed"] == []
