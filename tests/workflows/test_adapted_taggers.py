"""Models of other libraries wherever a tagger is named."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import mlflow
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from concord_testing import viewing
from concord_testing.checkout import CHECKOUT
from concord_testing.encoders import write_encoder
from concord_testing.spacy_pipelines import write_spacy

import concord
from concord.models.adapters.hf import HfTagger
from concord.models.adapters.spacy import SpacyTagger
from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import tagger_digest
from concord.models.errors import ModelError
from concord.pipeline.config import ParserConfig
from concord.pipeline.identity import component_signature
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.parsing.resolve_parser import parser_identity
from concord.pipeline.plan import Plan
from concord.pipeline.worker.shard_worker import build_worker
from concord.workflows.cli.main import main
from concord.workflows.registry import find_tagger
from concord.workflows.serving import write_model

NEWS = CHECKOUT / "examples" / "news"
DEV = CHECKOUT / "examples" / "train" / "dev.conllu"
pytestmark = pytest.mark.slow(reason="imports spaCy and transformers, and trains a pipeline")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONCORD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a spaCy pipeline that knows PER and LOC."""
    return write_spacy(tmp_path_factory.mktemp("spacy") / "pipeline")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an untrained model of transformers that knows PER and LOC."""
    labels = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    return write_encoder(tmp_path_factory.mktemp("hf"), ["ada", "met", "the", "##s"], labels=labels)


def run(*arguments: object, exit_code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert result.exit_code == exit_code, result.output
    values: dict[str, Any] = json.loads(result.stdout) if exit_code == 0 else {"message": result.stderr}
    return values


def test_a_model_is_wrapped_once_and_named_after_its_library(pipeline: Path, cache: Path) -> None:
    found = find_tagger(f"spacy:{pipeline}")
    assert (found.name, found.digest, found.folder.parent) == ("spacy", tagger_digest(found.folder), cache / "adapted")
    (found.folder / "calibration.json").write_text("damaged")
    again = find_tagger(f"spacy:{pipeline}")
    assert again == found
    assert not (found.folder / "calibration.json").exists()
    assert sorted(path.name for path in (cache / "adapted").iterdir() if path.is_dir()) == [found.digest]


def test_a_model_is_loaded_once_for_as_long_as_its_files_stay_the_same(
    pipeline: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = [shutil.copytree(folder, tmp_path / folder.name) for folder in (pipeline, model)]
    names = [f"{name}:{folder}" for name, folder in zip(("spacy", "hf"), copies, strict=True)]
    found = [find_tagger(name) for name in names]

    def refuse(source: str) -> SpacyTagger:
        raise ModelError(f"{source} is loaded again")

    for adapter in (SpacyTagger, HfTagger):
        monkeypatch.setattr(adapter, "adapt", refuse)
    assert [find_tagger(name) for name in names] == found
    for folder, name, changed in zip(copies, names, ("ner/model", "model.safetensors"), strict=True):
        with (folder / changed).open("ab") as file:
            file.write(b"x")
        with pytest.raises(ModelError, match="is loaded again"):
            find_tagger(name)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("spacy:no_such_pipeline", "install it with 'python -m spacy download no_such_pipeline'"),
        ("hf:no/such/folder", r"expected the folder of a model of transformers, with config\.json"),
        ("spacey:en", "unknown tagger 'spacey'"),
        ("bilstm_crf:en", "expected a tagger that wraps models of another library, got bilstm_crf"),
    ],
)
def test_a_model_that_is_not_there_is_refused_with_its_name(model: str, message: str) -> None:
    with pytest.raises(ModelError, match=f"^{model}: .*{message}"):
        find_tagger(model)


@pytest.mark.slow(reason="annotates by a spaCy pipeline, and exports in every form")
def test_the_news_are_annotated_by_a_spacy_pipeline_without_confidences(pipeline: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    answer = run("annotate", NEWS, "-o", out, "--model", f"spacy:{pipeline}")
    assert (answer["tagger"]["name"], answer["dead_letters"]) == ("spacy", 1)  # one file is broken on purpose
    run("verify", out)
    collection = concord.open(str(out))
    entities, tokens = collection.to_arrow("entities"), collection.to_arrow("tokens")
    assert entities.num_rows > 0
    assert set(entities["label"].to_pylist()) <= {"PER", "LOC"}
    for column in (entities["confidence"], entities["uncertainty"], tokens["ner_prob"], tokens["uncertainty"]):
        assert column.null_count == len(column)
    assert pc.all(pc.equal(entities["text"], pc.utf8_trim_whitespace(entities["text"]))).as_py()
    queue = run("review", out, "-o", tmp_path / "queue.json", "--size", "3")
    assert len(queue["choices"]) == 3
    assert all("drawn at random: the tagger gives no probabilities" in row["reason"] for row in queue["choices"])
    run("report", out)
    for form, name in (
        ("label-studio", "tasks.json"),
        ("jsonl", "rows.jsonl"),
        ("brat", "brat"),
        ("docbin", "x.spacy"),
        ("csv", "entities.csv"),
        ("spacy-jsonl", "spacy.jsonl"),
        ("hf", "hf"),
    ):
        run("export", out, "--to", form, "-o", tmp_path / name)
    with (tmp_path / "entities.csv").open(encoding="utf-8-sig", newline="") as stream:
        assert {(row["confidence"], row["uncertainty"]) for row in csv.DictReader(stream)} == {("", "")}
    # The same pipeline as a bundle is the same tagger, so that nothing is done again.
    run("bundle", f"spacy:{pipeline}", "-o", tmp_path / "bundle")
    again = run("annotate", NEWS, "-o", out, "--model", tmp_path / "bundle")
    assert (again["annotated"], again["unchanged"]) == (0, answer["annotated"])
    client = viewing.open_client(out, tmp_path / "view", who="ada")
    for page in (
        "/",
        "/names",
        f"/document?id={entities['doc_id'][0]}",
        f"/name?name={entities['name'][0]}",
        "/review",
    ):
        assert client.get(page).status_code == 200, page


@pytest.mark.slow(reason="trains a French pipeline of spaCy, for all tests of a session")
def test_a_french_archive_is_annotated_by_one_pipeline_as_parser_and_tagger(
    french_pipeline: Path, tmp_path: Path
) -> None:
    french, out = french_pipeline, tmp_path / "out"
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "lettre.txt").write_text("Anna habite à Lyon. L'ami dort.\n\nBob voit l'ami.", "utf-8")
    settings = ("--model", f"spacy:{french}", "--set", f"parser.package=spacy:{french}")
    answer = run("annotate", tmp_path / "archive", "-o", out, *settings)
    assert (answer["annotated"], answer["dead_letters"]) == (1, 0)
    run("verify", out)
    collection = concord.open(str(out))
    entities = collection.to_arrow("entities").to_pylist()
    assert collection.to_arrow("sentences").num_rows == 3
    assert [(row["text"], row["label"], row["start_char"]) for row in entities] == [
        ("Anna", "PER", 0), ("Lyon", "LOC", 14), ("Bob", "PER", 33)
    ]  # fmt: skip
    tokens = collection.to_arrow("tokens")
    assert tokens["deprel"].to_pylist()[:5] == ["nsubj", "root", "case", "obl", "punct"]
    documents = collection.to_arrow("documents")
    assert set(documents["parser"].to_pylist()) == {
        component_signature(parser_identity(ParserConfig(package=f"spacy:{french}")))
    }
    # A worker in another process has both from what it is sent.
    plan = OutputFolder(out).plan()
    sent = Plan.from_json(plan.for_workers().to_json())
    assert build_worker(sent).run(plan.shards[0])
    # Neither the name of the folder nor its place decides anything.
    moved = shutil.copytree(french, tmp_path / "moved")
    settings = ("--model", f"spacy:{moved}", "--set", f"parser.package=spacy:{moved}")
    again = run("annotate", tmp_path / "archive", "-o", out, *settings)
    assert (again["annotated"], again["unchanged"]) == (0, 1)
    run("annotate", tmp_path / "archive", "-o", out, "--set", "parser.package=parser_en")
    assert concord.open(str(out)).to_arrow("documents")["parser"][0].as_py().startswith("stanza/parser_en@")


def test_the_news_are_annotated_by_a_model_of_transformers_with_confidences(model: Path, tmp_path: Path) -> None:
    answer = run("annotate", NEWS, "-o", tmp_path / "out", "--model", f"hf:{model}")
    assert (answer["tagger"]["name"], answer["dead_letters"]) == ("hf", 1)
    entities = concord.open(str(tmp_path / "out")).to_arrow("entities")
    assert entities.num_rows > 0
    assert entities["confidence"].null_count == 0
    low, high = pc.min_max(entities["confidence"]).as_py().values()
    assert 0 < low <= high < 1


@pytest.mark.slow(reason="evaluates, registers, promotes and serves models of two libraries")
def test_a_pipeline_is_evaluated_registered_challenged_and_served_but_not_calibrated(
    pipeline: Path, model: Path, tmp_path: Path, store: Path
) -> None:
    del store
    name = f"spacy:{pipeline}"
    assert run("evaluate", name, "--data", DEV)["scores"]
    refused = run("calibrate", name, "--data", DEV, "-o", tmp_path / "calibrated", exit_code=2)
    assert "spacy: expected a tagger that gives its labels probabilities" in refused["message"]
    for tagger in (name, f"hf:{model}"):
        folder = tmp_path / tagger.partition(":")[0]
        bundle = run("bundle", tagger, "-o", folder)
        assert bundle["digest"] == find_tagger(tagger).digest == tagger_digest(folder)
        assert run("registry", "register", folder, "--name", "wrapped")["digest"] == bundle["digest"]
    assert load_tagger(find_tagger("models:/wrapped/1").folder).entity_types == ("LOC", "PER")
    gate = tmp_path / "gate.yaml"
    gate.write_text(f"data: [{DEV}]\nmin_f1: 0\nunknown_provenance: allow\nthroughput_ratio: 0\n")
    assert run("promote", "wrapped", "1", "--gate", gate)["champion"] == 1
    run("promote", "wrapped", "2", "--gate", gate, exit_code=4)
    write_model(tmp_path / "spacy", tmp_path / "served")
    served = mlflow.pyfunc.load_model(str(tmp_path / "served"))
    [entities] = served.predict(["Ada met Bob in Paris."])
    assert [(entity["text"], entity["label"]) for entity in entities] == [
        ("Ada", "PER"), ("Bob", "PER"), ("Paris", "LOC")
    ]  # fmt: skip
    assert {entity["confidence"] for entity in entities} == {None}


def test_a_wrapped_model_is_served_with_a_parser_of_another_language(french_pipeline: Path, tmp_path: Path) -> None:
    run("bundle", f"spacy:{french_pipeline}", "-o", tmp_path / "bundle")
    write_model(tmp_path / "bundle", tmp_path / "served")
    chosen = {"parser": {"package": f"spacy:{french_pipeline}"}}
    served = mlflow.pyfunc.load_model(str(tmp_path / "served"), model_config=chosen)
    [entities] = served.predict(["Anna habite à Lyon."])
    assert [(entity["text"], entity["start_char"]) for entity in entities] == [("Anna", 0), ("Lyon", 14)]


def test_a_model_of_transformers_is_calibrated_and_loaded_from_python(model: Path, tmp_path: Path) -> None:
    run("calibrate", f"hf:{model}", "--data", DEV, "-o", tmp_path / "calibrated", "--entities", "none")
    doc = concord.load(str(tmp_path / "calibrated"))("Ada met the Adas.")
    assert [token.text for token in doc.sentences[0].tokens] == ["Ada", "met", "the", "Adas", "."]
    assert all(token.ner_prob is not None for token in doc.sentences[0].tokens)
