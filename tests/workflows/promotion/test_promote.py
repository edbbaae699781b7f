"""``concord promote`` and ``concord rollback``: what they require, refuse and record."""

import hashlib
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner
from concord_testing.checkout import CHECKOUT
from concord_testing.promoters import exit_codes
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts

from concord.models.bundles.checkpoint import load_tagger, save_tagger
from concord.models.bundles.registry import build_tagger
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError, ModelError
from concord.workflows.cli.main import main
from concord.workflows.corpora.corpora import read_corpora, without_labels
from concord.workflows.corpora.provenance import Provenance, describe_part, write_provenance
from concord.workflows.promotion import promote
from concord.workflows.promotion.champion import settled_state
from concord.workflows.promotion.ledger import check_chain, tag_of
from concord.workflows.promotion.promote import (
    history_command,
    promote_command,
    rollback_command,
)
from concord.workflows.registry import model_versions
from concord.workflows.registry.mlflow_client import open_run, tracking_uri

pytestmark = pytest.mark.slow

TRAIN = CHECKOUT / "examples/train/train.conllu"
ALLOW = {"unknown_provenance": "allow", "throughput_ratio": 0, "rounds": 100}
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
    run = open_run(experiment="test", name="run", parameters={}, tags={})
    version = model_versions.register(bundle, name=name, run_id=run.run_id)
    run.close("FINISHED")
    return version.version


def call(*arguments: object) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.stdout)


@pytest.fixture
def versions(store: Path, tiny_bundle: Path, better_bundle: Path) -> list[int]:
    """Return the versions of the model ``tiny`` in a new store: a weak version 1 and a better version 2."""
    return [add_version(tiny_bundle), add_version(better_bundle)]


def test_a_gate_names_the_corpus_that_is_missing(store: Path, versions: list[int]) -> None:
    code, found = call("promote", "tiny", 1, "--gate", CHECKOUT / "conf" / "promote.yaml")
    assert code == 2
    assert f"promote.yaml: data: expected a gold corpus, found no file {store}/examples/train/prom" in found["error"]
    assert "choose the copy with --gate" in found["error"]
    assert call("promote", "tiny", 1) == (
        2,
        {
            "error": "conf/promote.yaml: expected a gate, found no such file; --gate names one, and 'concord init' "
            "writes one",
            "exit_code": 2,
        },
    )


def test_the_shipped_gate_judges_by_the_sample_corpus(
    store: Path, versions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri())
    monkeypatch.chdir(CHECKOUT)
    code, found = call("promote", "tiny", 1, "--force", "--reason", "a test")
    assert (code, found["champion"]) == (0, 1)
    assert {"digest", "provenance", "min_f1"} == {condition["name"] for condition in found["conditions"]}
    code, found = call("promote", "tiny", 2)
    assert code == REFUSED
    assert {"slice people", "slice names_of_many_words"} <= {condition["name"] for condition in found["conditions"]}


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("tiny", 3, "models:/tiny/3: not in the registry .*; the newest versions of tiny: 2, 1; its aliases: none"),
        ("tony", 1, "models:/tony/1: not in the registry .*; did you mean 'tiny'\\? registered are: tiny"),
        ("entities_multi", 1, "models:/entities_multi/1: not in the registry .*; registered are: tiny"),
    ],
)
def test_what_is_not_in_the_registry_is_named_with_what_is(
    store: Path, versions: list[int], name: str, version: int, message: str
) -> None:
    code, found = call("promote", name, version)
    assert code == 2
    assert re.match(message, found["error"]), found["error"]


def test_a_question_to_no_registry_creates_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for command in (("rollback", "tiny"), ("registry", "history", "tiny"), ("promote", "tiny", 1)):
        code, found = call(*command)
        assert (code, "there is no registry at" in found["error"]) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_the_history_of_an_unknown_model_names_those_there_are(store: Path, versions: list[int]) -> None:
    for command in (("rollback", "tinny"), ("registry", "history", "tinny"), ("registry", "show", "tinny")):
        code, found = call(*command)
        assert (code, "did you mean 'tiny'?" in found["error"]) == (2, True)


def test_a_champion_is_promoted_replaced_and_rolled_back(store: Path, versions: list[int], gold: Path) -> None:
    strict = write_gate(store, gold, min_f1=99.0)
    code, found = call("promote", "tiny", 1, "--gate", strict)
    assert (code, found["failed"], found["moved"]) == (REFUSED, ["min_f1"], False)
    assert settled_state("tiny").champion is None

    gate = write_gate(store, gold, min_f1=0, slices={"long": "sentence_words>4"})
    code, first = call("promote", "tiny", 1, "--gate", gate)
    assert (code, first["champion"], first["uses"]) == (0, 1, 1)
    assert [condition["name"] for condition in first["conditions"]] == ["digest", "provenance", "min_f1"]

    code, second = call("promote", "tiny", 2, "--gate", gate)
    assert (code, second["champion"], second["uses"]) == (0, 2, 2)
    names = [condition["name"] for condition in second["conditions"]]
    assert names == ["digest", "provenance", "p", "gain", "slice long", "throughput"]
    assert call("promote", "tiny", 2, "--gate", gate) == (0, {"model": "tiny", "champion": 2, "moved": False})

    code, refused = call("promote", "tiny", 1, "--gate", gate)
    assert (code, refused["failed"]) == (REFUSED, ["gain", "slice long"])
    assert all(condition["short_by"] > 0 for condition in refused["conditions"] if not condition["holds"])

    code, back = call("rollback", "tiny", "--reason", "just so")
    assert (code, back["champion"]) == (0, 1)
    assert (settled_state("tiny").champion, settled_state("tiny").previous) == (1, 2)
    recorded = history_command("tiny").values
    assert [(line["action"], line["came_from"], line["went_to"]) for line in recorded["lines"]] == [
        ("promote", None, 1),
        ("promote", 1, 2),
        ("rollback", 2, 1),
    ]
    check_evidence(second, gate)


def check_evidence(promoted: dict[str, Any], gate: Path) -> None:
    """Check that the evidence of a promotion is in the store and has the hash in the ledger."""
    path = Path(download_artifacts(promoted["evidence_place"], tracking_uri=tracking_uri()))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == promoted["evidence"] == promoted["ledger"]["evidence"]
    kept = json.loads(path.read_bytes())
    assert kept["conditions"] == promoted["conditions"]
    assert kept["comparison"]["lines"][0]["second"] == 100
    assert {"data", "alpha", "seed", "versions", "first", "second"} <= set(kept["comparison"])
    assert promoted["ledger"]["gate"] == hashlib.sha256(gate.read_bytes()).hexdigest()
    run = MlflowClient(tracking_uri()).get_run(promoted["evidence_place"].split("/")[1])
    assert (run.info.status, run.data.tags["concord.outcome"]) == ("FINISHED", "moved: ledger line 2")


def test_a_failing_gate_can_be_overridden_with_a_reason(store: Path, versions: list[int], gold: Path) -> None:
    gate = write_gate(store, gold, min_f1=100.0)
    with pytest.raises(ConfigError, match="expected --reason"):
        promote_command("tiny", 1, gate=gate, forced=True)
    with pytest.raises(ConfigError, match="1,000 characters at most"):
        promote_command("tiny", 1, gate=gate, reason="x" * 1001)
    answer = promote_command("tiny", 1, gate=gate, forced=True, reason="a first one for the tests")
    assert (answer.exit_code, answer.values["failed"]) == (0, ["min_f1"])
    assert "forced past min_f1" in answer.text
    line = history_command("tiny").values["lines"][0]
    assert (line["forced"], line["reason"]) == (True, "a first one for the tests")


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


def test_changed_files_are_refused_even_with_force(store: Path, versions: list[int], gold: Path) -> None:
    source = model_versions.resolve("models:/tiny/1").source.removeprefix("file://")
    weights = next(Path(source).rglob("weights.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    gate = write_gate(store, gold, min_f1=0.0)
    answer = promote_command("tiny", 1, gate=gate, forced=True, reason="whatever")
    assert (answer.exit_code, answer.values["failed"]) == (REFUSED, ["digest"])
    assert settled_state("tiny").champion is None


def test_rollback_needs_a_previous_champion(store: Path, versions: list[int]) -> None:
    with pytest.raises(ModelError, match="expected a champion and a previous one, got None and None"):
        rollback_command("tiny")


def test_a_broken_chain_is_reported_with_its_line(store: Path, versions: list[int], gold: Path) -> None:
    gate = write_gate(store, gold, min_f1=0.0)
    for version in versions:
        assert promote_command("tiny", version, gate=gate).exit_code == 0
    client = MlflowClient(tracking_uri(), tracking_uri())
    line = client.get_registered_model("tiny").tags[tag_of(1)]
    client.set_registered_model_tag("tiny", tag_of(1), line.replace('"uses":0', '"uses":7'))
    answer = history_command("tiny")
    assert answer.exit_code == 1
    assert [found["line"] for found in answer.values["breaks"]] == [2]
    assert "line 2: expected " in answer.text
    client.set_registered_model_tag("tiny", tag_of(1), line)
    assert history_command("tiny").exit_code == 0
    assert "2 lines, chain intact" in history_command("tiny").text


@pytest.mark.parametrize("place", ["sqlite", "server"])
def test_one_of_four_concurrent_promotions_wins(
    place: str,
    store: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tiny_bundle: Path,
    better_bundle: Path,
    gold: Path,
) -> None:
    if place == "server":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", request.getfixturevalue("mlflow_server"))
    name = f"rivals_at_{place}"
    add_version(tiny_bundle, name=name)
    gate = write_gate(store, gold, min_f1=0.0)
    assert promote_command(name, 1, gate=gate).exit_code == 0
    rivals = [add_version(better_bundle, name=name) for _ in range(4)]

    def rival(version: int) -> None:
        raise SystemExit(promote_command(name, version, gate=gate).exit_code)

    codes = exit_codes([partial(rival, version) for version in rivals], uri=tracking_uri())
    assert sorted(codes, key=str) == [0, REFUSED, REFUSED, REFUSED]
    state = settled_state(name)
    assert check_chain(state.lines, champion=rivals[codes.index(0)]) == []
    assert len(state.lines) == 2
    outcomes = [run.data.tags.get("concord.outcome", "") for run in attempts()]
    assert sum(outcome.startswith("race lost") for outcome in outcomes) == 3


def attempts() -> list[Any]:
    client = MlflowClient(tracking_uri())
    experiment = client.get_experiment_by_name(promote.EXPERIMENT)
    return list(client.search_runs([experiment.experiment_id]))


def test_an_invalid_gate_does_not_count_as_a_use_of_its_set(store: Path, versions: list[int], gold: Path) -> None:
    code, found = call("promote", "tiny", 1, "--gate", write_gate(store, gold.with_name("absent.conll")))
    assert (code, "absent.conll" in found["error"]) == (2, True)
    code, found = call("promote", "tiny", 1, "--gate", write_gate(store, gold, slices={"long": "sentence_words"}))
    assert (code, "expected NAME=FIELD:PATTERN" in found["error"]) == (2, True)
    code, found = call("promote", "tiny", 1, "--gate", write_gate(store, gold, min_f1=0.0))
    assert (code, found["uses"]) == (0, 0)
