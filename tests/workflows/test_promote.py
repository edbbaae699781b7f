"""``concord promote`` and ``concord rollback``: what they require, refuse and record."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from concord_testing.checkout import CHECKOUT
from concord_testing.command_line import concord
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts

from concord.models.bundles.checkpoint import load_tagger, save_tagger
from concord.models.bundles.registry import build_tagger
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError, ModelError
from concord.workflows import promotion, registry
from concord.workflows.corpora import Provenance, describe_part, read_corpora, without_labels, write_provenance
from concord.workflows.mlflow_client import TrackingError, open_run, tracking_uri
from concord.workflows.promotion import (
    Condition,
    Findings,
    RaceLostError,
    history_command,
    promote_command,
    rollback_command,
)
from concord.workflows.registry import aliases_of, create_model, set_alias

pytestmark = pytest.mark.slow

TRAIN = CHECKOUT / "examples/train/train.conllu"
ALLOW = {"unknown_provenance": "allow", "throughput_ratio": 0}
REFUSED = 4


@pytest.fixture(scope="session")
def better_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tagger with the tiny one's entity types that is always right on the corpus ``gold``."""
    folder = tmp_path_factory.mktemp("taggers") / "better"
    torch.manual_seed(5)
    sentences = [sentence for document in read_corpora([str(TRAIN)], labels={}) for sentence in document]
    config = {"representation": {"word_dimension": 8, "characters": None}, "lstm": {"hidden": 8, "layers": 1}}
    save_tagger(build_tagger("bilstm_crf", config, Vocabulary.from_sentences(sentences)).eval(), folder)
    return folder


@pytest.fixture(scope="session")
def gold(better_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a corpus whose gold labels are those of the better tagger."""
    documents = without_labels(read_corpora([str(TRAIN)], labels={}))
    blocks = []
    for number, predictions in enumerate(load_tagger(better_bundle).predict_documents(documents)):
        blocks.append(f"-DOCSTART-\td{number}\n")
        for sentence, prediction in zip(documents[number], predictions, strict=True):
            rows = zip(sentence.words, prediction.labels, strict=True)
            blocks.append("".join(f"{word}\t{label}\n" for word, label in rows))
    path = tmp_path_factory.mktemp("gold") / "promotion.conll"
    path.write_text("\n".join(blocks), encoding="utf-8")
    return path


def write_gate(folder: Path, gold: Path, **changes: Any) -> Path:
    path = folder / "gate.yaml"
    path.write_text(yaml.safe_dump({"data": [str(gold)], **ALLOW, **changes}), encoding="utf-8")
    return path


def add_version(bundle: Path, *, name: str = "tiny") -> int:
    with open_run(experiment="test", name="run", parameters={}, tags={}) as run:
        return registry.register(bundle, name=name, run_id=run.run_id).version


def call(*arguments: object) -> tuple[int, dict[str, Any]]:
    result = concord(*arguments, "--json")
    return result.exit_code, json.loads(result.stdout)


@pytest.fixture(scope="session")
def registered(
    store_template: Path, tiny_bundle: Path, better_bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return the database of a store with the model ``tiny``: a weak version 1 and a better version 2."""
    path = tmp_path_factory.mktemp("registered") / "mlflow.db"
    shutil.copy(store_template, path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
        add_version(tiny_bundle)
        add_version(better_bundle)
    return path


@pytest.fixture
def versions(store: Path, registered: Path) -> None:
    """Put both versions of ``registered`` into a new store."""
    shutil.copy(registered, store / "mlflow.db")


@pytest.fixture
def fakes(store: Path, monkeypatch: pytest.MonkeyPatch) -> list[Condition]:
    """Return the conditions that an examination finds, in a store with three versions without files."""
    client = MlflowClient(tracking_uri(), tracking_uri())
    create_model("tiny")
    with open_run(experiment="versions", name="versions", parameters={}, tags={}) as run:
        for _ in range(3):
            client.create_model_version("tiny", f"{client.get_run(run.run_id).info.artifact_uri}/model", run.run_id)
    conditions = [Condition(name="p", holds=True, found="0.01", wanted="below 0.05")]
    monkeypatch.setattr(promotion, "examine", lambda *_, **__: Findings(conditions=conditions, evidence={"seed": 1}))
    return conditions


def moves(name: str = "tiny") -> list[tuple[str, int | None, int]]:
    lines = history_command(name).values["moves"]
    return [(line["action"], line["came_from"], line["went_to"]) for line in lines]


def test_the_shipped_gate_judges_by_the_sample_corpus(
    store: Path, versions: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri())
    monkeypatch.chdir(CHECKOUT)
    code, found = call("promote", "tiny", 1, "--force", "--reason", "a test")
    assert (code, found["champion"]) == (0, 1)
    assert {"digest", "provenance", "min_f1"} == {condition["name"] for condition in found["conditions"]}
    code, found = call("promote", "tiny", 2)
    assert code == REFUSED
    assert "PER" in {condition["name"] for condition in found["conditions"]}


def test_what_is_not_in_the_registry_is_named_with_what_is(store: Path, versions: None) -> None:
    for name, version, message in (
        ("tiny", 3, "models:/tiny/3: not in the registry .*; the newest versions of tiny: 2, 1; its aliases: none"),
        ("tony", 1, "models:/tony/1: not in the registry .*; did you mean 'tiny'\\? registered are: tiny"),
        ("entities_multi", 1, "models:/entities_multi/1: not in the registry .*; registered are: tiny"),
    ):
        code, found = call("promote", name, version)
        assert (code, bool(re.match(message, found["error"]))) == (2, True), found["error"]
    for command in (("rollback", "tinny"), ("registry", "history", "tinny"), ("registry", "show", "tinny")):
        code, found = call(*command)
        assert (code, "did you mean 'tiny'?" in found["error"]) == (2, True)


def test_a_question_to_no_registry_creates_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    asking = (
        ("rollback", "tiny"),
        ("registry", "history", "tiny"),
        ("registry", "show", "tiny"),
        ("promote", "tiny", 1),
    )
    for command in asking:
        code, found = call(*command)
        assert (code, "there is no registry at sqlite" in found["error"]) == (2, True)
    listed = concord("registry", "list")
    assert (listed.exit_code, "No model is registered at sqlite:" in listed.stdout) == (0, True)
    assert list(tmp_path.iterdir()) == []


def test_a_champion_is_promoted_and_replaced_by_a_better_one_only(store: Path, versions: None, gold: Path) -> None:
    strict = write_gate(store, gold, min_f1=99.0)
    code, found = call("promote", "tiny", 1, "--gate", strict)
    assert (code, found["failed"], found["moved"]) == (REFUSED, ["min_f1"], False)
    assert aliases_of("tiny") == {}

    rule: dict[str, Any] = {"min_f1": 0, "no_worse": ["PER"]}
    code, first = call("promote", "tiny", 1, "--gate", write_gate(store, gold, **rule))
    assert (code, first["champion"], first["uses"]) == (0, 1, 1)
    assert [condition["name"] for condition in first["conditions"]] == ["digest", "provenance", "min_f1"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(promotion, "relative_speed", lambda *_: 0.95)
        gate = write_gate(store, gold, **rule, throughput_ratio=0.9)
        code, second = call("promote", "tiny", 2, "--gate", gate)
    assert (code, second["champion"], second["uses"]) == (0, 2, 2)
    names = [condition["name"] for condition in second["conditions"]]
    assert names == ["digest", "provenance", "p", "gain", "PER", "throughput"]
    check_evidence(second)

    code, refused = call("promote", "tiny", 1, "--gate", write_gate(store, gold, **rule))
    assert (code, refused["failed"]) == (REFUSED, ["gain", "PER"])
    assert all(condition["short_by"] > 0 for condition in refused["conditions"] if not condition["holds"])
    assert moves() == [("promote", None, 1), ("promote", 1, 2)]


def check_evidence(promoted: dict[str, Any]) -> None:
    """Check that the evidence of a promotion and its gate are in the store."""
    kept = json.loads(Path(download_artifacts(promoted["evidence"], tracking_uri=tracking_uri())).read_bytes())
    assert kept["conditions"] == promoted["conditions"]
    assert kept["comparison"]["lines"][0]["second"] == 100
    assert {"data", "alpha", "versions", "first", "second"} <= set(kept["comparison"])
    client, run = MlflowClient(tracking_uri()), promoted["evidence"].split("/")[1]
    assert {"evidence.json", "gate.yaml"} <= {artifact.path for artifact in client.list_artifacts(run)}
    assert client.get_run(run).info.status == "FINISHED"


def test_the_history_has_a_line_for_every_move_and_none_for_a_refusal(
    store: Path, fakes: list[Condition], gold: Path
) -> None:
    gate = write_gate(store, gold)
    create_model("other")
    with pytest.raises(ModelError, match="expected a champion and a previous one, got None and None"):
        rollback_command("tiny")
    assert "No moves yet." in history_command("tiny").text
    assert promote_command("tiny", 1, gate=gate).text.startswith("Champion of tiny: version 1 (there was none).")
    assert promote_command("tiny", 3, gate=gate, reason="better").exit_code == 0
    assert call("promote", "tiny", 3, "--gate", gate) == (0, {"model": "tiny", "champion": 3, "moved": False})
    fakes.append(Condition(name="gain", holds=False, found="-1", wanted="above 0", short_by=1.0))
    assert promote_command("tiny", 2, gate=gate, reason="not enough").exit_code == REFUSED
    code, back = call("rollback", "tiny", "--reason", "just so")
    assert (code, back["champion"], aliases_of("tiny")) == (0, 1, {"champion": 1, "previous": 3})
    assert moves() == [("promote", None, 1), ("promote", 1, 3), ("rollback", 3, 1)]
    assert moves("other") == []
    answer = history_command("tiny")
    assert [line["reason"] for line in answer.values["moves"]] == [None, "better", "just so"]
    assert all(line["finished"] for line in answer.values["moves"])
    assert "champion: 1, previous: 3" in answer.text


def test_a_failing_gate_can_be_overridden_with_a_reason(store: Path, fakes: list[Condition], gold: Path) -> None:
    gate = write_gate(store, gold)
    fakes[:] = [Condition(name="min_f1", holds=False, found="41", wanted="50 or more", short_by=9.0)]
    with pytest.raises(ConfigError, match="expected --reason"):
        promote_command("tiny", 1, gate=gate, forced=True)
    answer = promote_command("tiny", 1, gate=gate, forced=True, reason="a first one for the tests")
    assert (answer.exit_code, answer.values["failed"]) == (0, ["min_f1"])
    assert "forced past min_f1" in answer.text
    line = history_command("tiny").values["moves"][0]
    assert (line["forced"], line["reason"]) == (True, "a first one for the tests")
    assert "promote (forced)" in history_command("tiny").text


def test_a_champion_that_moved_during_the_examination_is_not_moved(
    store: Path, fakes: list[Condition], gold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = write_gate(store, gold)
    assert promote_command("tiny", 1, gate=gate).exit_code == 0

    def overtake(*_: object, **__: object) -> Findings:
        set_alias("tiny", "champion", 2)
        return Findings(conditions=[], evidence={})

    monkeypatch.setattr(promotion, "examine", overtake)
    with pytest.raises(RaceLostError, match="the champion is now version 2 and was 1") as caught:
        promote_command("tiny", 3, gate=gate)
    assert caught.value.exit_code == REFUSED
    assert (aliases_of("tiny"), len(moves())) == ({"champion": 2}, 1)


def test_a_move_that_was_stopped_is_shown_as_unfinished(
    store: Path, fakes: list[Condition], gold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = write_gate(store, gold)

    def fail(*_: object) -> None:
        raise TrackingError("the store is down")

    assert promote_command("tiny", 1, gate=gate).exit_code == 0
    with monkeypatch.context() as patch:
        patch.setattr(promotion, "set_alias", fail)
        with pytest.raises(TrackingError):
            promote_command("tiny", 2, gate=gate)
    set_alias("tiny", "previous", 1)
    with pytest.raises(ModelError, match="expected a champion and a previous one, got 1 and 1"):
        rollback_command("tiny")
    assert "promote (unfinished)" in history_command("tiny").text
    assert promote_command("tiny", 2, gate=gate).exit_code == 0
    assert [line["finished"] for line in history_command("tiny").values["moves"]] == [True, False, True]
    assert aliases_of("tiny") == {"champion": 2, "previous": 1}


def test_a_candidate_that_has_seen_the_promotion_set_is_refused(
    store: Path, tmp_path: Path, tiny_bundle: Path, gold: Path
) -> None:
    documents = read_corpora([str(gold)], labels={})
    bundle = tmp_path / "seen"
    save_tagger(load_tagger(tiny_bundle), bundle)
    write_provenance(bundle, Provenance(parts=[describe_part("dev", [str(gold)], documents[:2])]))
    gate = write_gate(store, gold, min_f1=0.0)
    answer = promote_command("tiny", add_version(bundle), gate=gate)
    assert (answer.exit_code, answer.values["failed"]) == (REFUSED, ["provenance"])
    assert "2 in what chose its checkpoint" in answer.text
    strict = write_gate(store, gold, min_f1=0.0, unknown_provenance="refuse")
    answer = promote_command("tiny", add_version(tiny_bundle), gate=strict)
    assert (answer.exit_code, answer.values["failed"], answer.values["uses"]) == (REFUSED, ["provenance"], 1)


def test_changed_files_are_refused_even_with_force(store: Path, tiny_bundle: Path, gold: Path) -> None:
    add_version(tiny_bundle)
    source = registry.resolve("models:/tiny/1").source.removeprefix("file://")
    weights = next(Path(source).rglob("weights.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    gate = write_gate(store, gold, min_f1=0.0)
    answer = promote_command("tiny", 1, gate=gate, forced=True, reason="whatever")
    assert (answer.exit_code, answer.values["failed"]) == (REFUSED, ["digest"])
    assert aliases_of("tiny") == {}


def test_an_invalid_gate_is_explained_and_is_no_use_of_its_set(store: Path, fakes: list[Condition], gold: Path) -> None:
    absent = "expected a gate, found no such file; --gate names one, and 'concord init' writes one"
    assert call("promote", "tiny", 1) == (2, {"error": f"conf/promote.yaml: {absent}", "exit_code": 2})
    code, found = call("promote", "tiny", 1, "--gate", write_gate(store, gold, data=["absent.conll"]))
    assert (code, f"data: expected a gold corpus, found no file {store}/absent.conll" in found["error"]) == (2, True)
    assert "choose the copy with --gate" in found["error"]
    code, found = call("promote", "tiny", 1, "--gate", write_gate(store, gold, no_worse={"PER": 1}))
    assert (code, "no_worse" in found["error"]) == (2, True)
    code, found = call("promote", "tiny", 1, "--gate", write_gate(store, gold, min_f1=0.0))
    assert (code, found["uses"]) == (0, 0)
