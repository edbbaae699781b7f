"""Candidates from the calibration to the tables, and what else reads these; a list of terms at annotation."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from concord_testing import fakes, runs, viewing
from concord_testing.checkout import CHECKOUT
from concord_testing.command_line import concord_json

import concord
from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import tagger_digest
from concord.models.errors import ConfigError
from concord.pipeline.corrections.correction import Correction, Mark, Seen, append_to_log, log_path
from concord.pipeline.errors import InputError
from concord.pipeline.exchange.export import export_collection
from concord.pipeline.exchange.review_queue import Quotas, select_sentences
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.output.collection import open_collection, read_collection, whole_sentences
from concord.pipeline.output.schema import TableName
from concord.pipeline.output.shard_stats import total_counts
from concord.pipeline.output.verify import verify
from concord.pipeline.plan import Plan
from concord.pipeline.worker.shard_worker import ShardWorker
from concord.workflows.cli.main import main
from concord.workflows.diff import diff_collections

pytestmark = pytest.mark.slow

TRAIN, DEV = CHECKOUT / "examples/train/train.conllu", CHECKOUT / "examples/train/dev.conllu"
QUOTAS = Quotas(size=100, per_document=None, per_type=None, seed=1)


def calibrate(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["calibrate", *map(str, arguments)])


@pytest.fixture(scope="module")
def guaranteed(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a calibrated copy of the tiny bundle with a guarantee; tests must not change it."""
    folder = tmp_path_factory.mktemp("taggers") / "guaranteed"
    options = ("--recall", 0.3, "--entities", "none", "--test", TRAIN, "--json")
    result = calibrate(tiny_bundle, "--data", DEV, "--output", folder, *options)
    assert result.exit_code == 0, result.output
    values = orjson.loads(result.stdout)
    calibration = load_tagger(folder).calibration
    assert calibration is not None
    assert calibration.guarantee is not None
    assert values["guarantee"] == calibration.guarantee.model_dump()
    assert "recall with candidates: 0.3" in calibration.summary(candidates=True)
    assert "recall" not in calibration.summary(candidates=False)
    shown = values["test"]["figures"]["shown"]
    assert shown["before"]["recall"] < shown["after"]["recall"]
    assert shown["after"]["candidates_per_1000_words"] > shown["before"]["candidates_per_1000_words"] == 0
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of six invented documents."""
    return runs.write_collection(tmp_path_factory.mktemp("input") / "in.jsonl", documents=6)


@pytest.fixture(scope="module")
def output(guaranteed: Path, source: Path) -> Path:
    """Return a collection with candidates; tests must not change it."""
    return annotate(guaranteed, source, source.with_name("out"))


def annotate(folder: Path, source: Path, output: Path, *, candidates: bool = True, **changes: Any) -> Path:
    tagger = ResolvedTagger(name="bilstm_crf", version=None, digest=tagger_digest(folder), folder=folder)
    settings = {"output": {"path": str(output), "candidates": candidates}} | changes
    runs.run_job(runs.job(source, output, **settings), tagger=tagger, build=build)
    return output


def build(plan: Plan) -> ShardWorker:
    return ShardWorker(plan, parser=fakes.FakeParser(), tagger=load_tagger(Path(plan.tagger_folder)))


def rows_of(output: Path, table: TableName = "entities") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = concord.open(output).to_arrow(table).to_pylist()
    return rows


def entities_of(output: Path) -> list[dict[str, Any]]:
    return [row for row in rows_of(output) if row["source"] != "candidate"]


def test_candidates_follow_the_entities_of_each_document_and_change_none(
    guaranteed: Path, source: Path, output: Path, tmp_path: Path
) -> None:
    assert verify(output) == []
    plain = annotate(guaranteed, source, tmp_path / "plain", candidates=False)
    assert entities_of(output) == rows_of(plain)
    assert rows_of(output, "tokens") == rows_of(plain, "tokens")
    assert all(row["n_candidates"] == 0 for row in rows_of(plain, "documents"))
    threshold = load_tagger(guaranteed).calibration.guarantee.threshold  # type: ignore[union-attr]
    for document in read_collection(open_collection(output)):
        assert document.row.n_candidates == len(document.candidates) > 0
        assert {row.source for row in document.candidates} == {"candidate"}
        assert all(row.confidence is not None and row.confidence >= threshold - 1e-6 for row in document.candidates)
        spans = [(row.start_char, row.end_char, row.label) for row in document.entities + document.candidates]
        assert len(set(spans)) == len(spans)


def test_equal_runs_write_equal_bytes_and_other_batches_the_same_candidates(
    guaranteed: Path, source: Path, output: Path, tmp_path: Path
) -> None:
    again = annotate(guaranteed, source, tmp_path / "again")
    parts = [path for path in runs.committed_bytes(output) if path.endswith(".parquet")]
    assert [runs.committed_bytes(again)[path] for path in parts] == [
        runs.committed_bytes(output)[path] for path in parts
    ]
    small = annotate(guaranteed, source, tmp_path / "small", tagger={"batch_words": 1})
    exact = ("confidence", "uncertainty")
    found = [[{**row, **dict.fromkeys(exact)} for row in rows_of(folder)] for folder in (output, small)]
    assert found[0] == found[1]


def test_run_without_candidates_removes_those_of_the_last_one(guaranteed: Path, source: Path, tmp_path: Path) -> None:
    output = annotate(guaranteed, source, tmp_path / "out")
    before = entities_of(output)
    annotate(guaranteed, source, output, candidates=False)
    assert rows_of(output) == before
    annotate(guaranteed, source, output)
    assert len(rows_of(output)) > len(before)
    assert verify(output) == []


def test_counts_exports_differences_and_documents_leave_candidates_out(
    guaranteed: Path, source: Path, output: Path, tmp_path: Path
) -> None:
    entities = entities_of(output)
    counts = total_counts(open_collection(output).manifest.shards)
    assert (counts["entities"], counts["candidates"]) == (len(entities), len(rows_of(output)) - len(entities))
    assert sum(count for name, count in counts.items() if name.startswith("entities.")) == len(entities)
    report = export_collection(output, tmp_path / "out.jsonl", to="jsonl")
    assert report.entities == len(entities)
    assert b"candidate" not in (tmp_path / "out.jsonl").read_bytes()
    document = concord.open(output).document("d2")
    assert [entity.entity_id for entity in document.entities] == list(range(len(document.entities)))
    assert {entity.source for entity in document.entities} == {"model"}
    plain = annotate(guaranteed, source, tmp_path / "plain", candidates=False)
    assert diff_collections(plain, output, listed=20).values["entities"]["changes"] == []


def test_view_shows_the_entities_of_every_document_without_candidates(output: Path, tmp_path: Path) -> None:
    client = viewing.open_client(output, tmp_path / "cache", who="ada")
    names = Counter(row["name"] for row in entities_of(output))
    name, count = names.most_common(1)[0]
    assert re.search(rf"{count}\b", client.get("/name", params={"name": name}).text)
    for document in read_collection(open_collection(output)):
        page = client.get("/document", params={"id": document.row.doc_id})
        assert page.status_code == 200
        assert len(set(re.findall(r' id="e(\d+)"', page.text))) == len(document.entities)


def test_sentences_with_candidates_are_reviewed_first(output: Path) -> None:
    documents = list(read_collection(open_collection(output)))
    queue = select_sentences(documents, QUOTAS)
    shown = {
        (document.row.doc_id, pieces[0].sent_id)
        for document in documents
        for pieces in whole_sentences(document)
        if {piece.sent_id for piece in pieces} & {row.sent_id for row in document.candidates}
    }
    assert {(sentence.doc_id, sentence.sent_id) for sentence in queue[: len(shown)]} == shown
    assert all(sentence.reason.startswith("candidate ") for sentence in queue[: len(shown)])
    likeliest = max(row.confidence or 0 for document in documents for row in document.candidates)
    assert queue[0].score == pytest.approx(1 + likeliest, abs=1e-6)
    assert all(sentence.score <= 1 for sentence in queue[len(shown) :])


def test_candidate_of_a_corrected_word_is_gone(guaranteed: Path, source: Path, tmp_path: Path) -> None:
    output = annotate(guaranteed, source, tmp_path / "out")
    text = concord.open(output).document("d0").text
    entities = [row for row in entities_of(output) if row["doc_id"] == "d0"]
    candidates = [row for row in rows_of(output) if row["doc_id"] == "d0" and row not in entities]

    def overlapping(row: dict[str, Any], others: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [it for it in others if it["start_char"] < row["end_char"] and row["start_char"] < it["end_char"]]

    chosen = next(row for row in candidates if not overlapping(row, entities))
    start, end = chosen["start_char"], chosen["end_char"]
    mark = Mark(start=start, end=end, type=chosen["label"], text=text[start:end])
    seen = Seen(doc_id="d0", tagger="t", generation=0)
    append_to_log(log_path(output), [Correction.of(None, mark, text=text, seen=seen, who="ada")])
    words = {(row["doc_id"], row["start_char"]): row["ner"] for row in rows_of(output, "tokens")}
    annotate(guaranteed, source, output)
    after = [row for row in rows_of(output) if row["doc_id"] == "d0"]
    gone = overlapping(chosen, candidates)
    assert [row["source"] for row in overlapping(chosen, after)] == ["corrected"]
    assert len(after) == len(entities) + 1 + len(candidates) - len(gone)
    for row in rows_of(output, "tokens"):
        is_marked = row["doc_id"] == "d0" and bool(overlapping(chosen, [row]))
        assert is_marked or row["ner"] == words[row["doc_id"], row["start_char"]]
    assert verify(output) == []


def test_candidates_are_refused_without_a_guarantee_or_where_it_does_not_hold(
    tiny_bundle: Path, guaranteed: Path, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match=r"output\.candidates: .*which has none; .*concord calibrate .* --recall 0\.95"
    ):
        annotate(tiny_bundle, source, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"leave out tagger\.precision, tagger\.threshold"):
        annotate(guaranteed, source, tmp_path / "out", tagger={"threshold": 0.2, "precision": "bf16"})
    assert not (tmp_path / "out").exists()


def test_guarantee_that_cannot_be_given_is_refused(tiny_bundle: Path, token_bundle: Path, tmp_path: Path) -> None:
    few = calibrate(tiny_bundle, "--data", DEV, "--output", tmp_path / "copy", "--recall", 0.95)
    assert (few.exit_code, "expected 19 documents or more, got 3" in few.stderr) == (2, True)
    words = calibrate(
        token_bundle, "--data", DEV, "--label-column", "upos", "--output", tmp_path / "copy", "--recall", 0.5
    )
    assert (words.exit_code, "expected a tagger of entities" in words.stderr) == (2, True)
    assert not (tmp_path / "copy").exists()


def test_guarantee_needs_documents(tiny_bundle: Path, tmp_path: Path) -> None:
    marked = DEV.read_text()
    bare = "".join(line for line in marked.splitlines(keepends=True) if "newdoc" not in line)
    before = marked.index("# newdoc", 1)
    texts = {"none": bare, "late": marked[:before].replace("# newdoc", "# olddoc") + marked[before:]}
    for name, text in texts.items():
        path = tmp_path / f"{name}.conllu"
        path.write_text(text)
        for option, options in (("--data", ()), ("--test", ("--data", DEV))):
            refused = calibrate(
                tiny_bundle, *options, option, path, "--output", tmp_path / "copy", "--recall", 0.3, "--allow-overlap"
            )
            assert refused.exit_code == 2
            assert f"{option}: --recall is a promise about documents" in refused.stderr
            assert "outside of any document" in refused.stderr
            assert not (tmp_path / "copy").exists()


def test_a_guarantee_that_a_new_calibration_leaves_out_is_named(guaranteed: Path, tmp_path: Path) -> None:
    again = calibrate(guaranteed, "--data", DEV, "--output", tmp_path / "copy", "--entities", "none", "--allow-overlap")
    assert again.exit_code == 0, again.output
    assert "--recall finds a new one" in again.stderr
    calibration = load_tagger(tmp_path / "copy").calibration
    assert calibration is not None
    assert calibration.guarantee is None


MODEL = "entities_en_small"
TEXT = "Zorbax sold its plants in Vellmar to Tarn Metals in London last week ."


@pytest.fixture
def terms(tmp_path: Path) -> Path:
    path = tmp_path / "terms.jsonl"
    lines = ({"label": "ORG", "pattern": "Zorbax"}, {"label": "LOC", "pattern": "London"})
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def annotate_by_terms(folder: Path, *options: str) -> dict[str, tuple[str, str]]:
    """Annotate the text and return label and source of the entities by their text."""
    (folder / "text.txt").write_text(TEXT)
    concord_json("annotate", folder / "text.txt", "-o", folder / "out", "-m", MODEL, *options)
    rows = pq.read_table(folder / "out" / "entities").to_pylist()
    return {row["text"]: (row["label"], row["source"]) for row in rows}


def test_entities_of_the_list_are_found_and_named(tmp_path: Path, terms: Path) -> None:
    plain = annotate_by_terms(tmp_path)
    assert {source for _, source in plain.values()} == {"model"}
    found = annotate_by_terms(tmp_path, "--set", f"tagger.terms={terms}")
    assert found["London"] == ("LOC", "terms")
    changed = found.keys() ^ plain.keys() | {name for name in plain if found.get(name, ("",))[0] != plain[name][0]}
    assert changed <= {"Zorbax"}
    concord_json("verify", tmp_path / "out")
    (signature,) = pq.read_table(tmp_path / "out" / "documents")["tagger"].unique().to_pylist()
    assert "+terms@" in signature
    entities = concord.load(MODEL, terms=terms)(TEXT).entities
    assert {entity.text: (entity.label, entity.source) for entity in entities} == found


def test_labels_that_the_tagger_does_not_know_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "terms.jsonl"
    path.write_text('{"label": "DRUG", "pattern": "aspirin"}\n')
    with pytest.raises(InputError, match=r"expected labels that the tagger knows \(CARDINAL, .*, TIME\), got DRUG"):
        concord.load(MODEL, terms=path)
