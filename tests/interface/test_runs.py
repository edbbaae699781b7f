"""Collections annotated and opened from Python."""

import json
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner
from concord_testing.checkout import CHECKOUT
from concord_testing.runs import copy_output

import concord
from concord.models.errors import ConfigError
from concord.pipeline.errors import DeadLetterLimitError, IntegrityError, PlanError
from concord.pipeline.output.schema import SCHEMAS
from concord.runs import Run
from concord.workflows.cli.main import main

MODEL = "entities_en_small"
TEXTS = {
    "voyage": "Ada met Charles in London. Paris is far away, said Ada.",
    "empty": "",
    "letter": "Dear Łukasz,\r\n\r\nI left \U0001f389 Genève for Boston.\r\n",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a collection of three texts and one broken line."""
    path = tmp_path_factory.mktemp("source") / "texts.jsonl"
    records = [json.dumps({"id": doc_id, "text": text}) for doc_id, text in TEXTS.items()]
    path.write_text("\n".join([*records, "no json"]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return the run over the collection."""
    output = tmp_path_factory.mktemp("runs") / "out"
    return concord.annotate(source, output, model=MODEL, settings={"max_dead_letters": 0.5})


def test_the_tables_are_those_of_the_command_line(source: Path, run: Run, tmp_path: Path) -> None:
    arguments = ["annotate", str(source), "-o", str(tmp_path / "out"), "-m", MODEL, "--set", "max_dead_letters=0.5"]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    theirs = concord.open(tmp_path / "out")
    for table in SCHEMAS:
        assert getattr(run, table).to_table().equals(getattr(theirs, table).to_table())
    assert run.documents.count_rows() == 3
    assert run.errors.count_rows() == 1
    assert repr(run).endswith("generation=0 documents=3 dead_letters=1>")


def test_tables_are_datasets_and_data_frames(run: Run) -> None:
    assert isinstance(run.entities, ds.Dataset)
    frame = run.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert {"Paris", "London"} <= set(frame["text"])
    assert run.to_pandas("errors")["stage"].tolist() == ["read"]
    with pytest.raises(ValueError, match="expected one of documents"):
        run.to_arrow("entity")  # type: ignore[arg-type]


def test_names_count_every_entity(run: Run) -> None:
    names = run.to_pandas("names")
    assert names["mentions"].sum() == run.entities.count_rows()
    paris = names.query("canonical == 'Paris'")
    assert paris["mentions"].sum() == (run.to_pandas()["canonical"] == "Paris").sum() > 0
    assert set(paris["first_doc_id"]) <= set(TEXTS)


def test_tables_can_be_queried(run: Run) -> None:
    query = "select text from entities join documents using (doc_id) where doc_id = 'voyage' order by start_char"
    assert run.sql(query).df()["text"].tolist() == run.to_pandas().query("doc_id == 'voyage'")["text"].tolist()


def test_a_document_is_what_load_makes_of_its_text(run: Run) -> None:
    for doc_id, made in zip(TEXTS, concord.load(MODEL).pipe(TEXTS.values()), strict=True):
        found = run.document(doc_id)
        assert found.text == TEXTS[doc_id]
        assert [(token.text, token.head, token.ner) for token in found.tokens] == [
            (token.text, token.head, token.ner) for token in made.tokens
        ]
        assert [(entity.start_char, entity.end_char, entity.label) for entity in found.entities] == [
            (entity.start_char, entity.end_char, entity.label) for entity in made.entities
        ]


def test_a_document_needs_only_the_parts_of_its_shard(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "in" / f"{name}.txt").write_text(f"Ada saw {name}.")
    settings = {"planning.shard_bytes": 5}
    run = concord.annotate(tmp_path / "in", tmp_path / "out", model=MODEL, settings=settings)
    assert len(run.tokens.files) == 3
    for part in (run.tokens.files[0], run.tokens.files[2]):
        Path(part).write_bytes(b"damaged")
    assert concord.open(tmp_path / "out").document("b.txt").text == "Ada saw b."


def test_a_document_that_is_not_there_is_a_key_error(run: Run) -> None:
    with pytest.raises(KeyError, match="no document 'nobody'"):
        run.document("nobody")


def test_a_document_whose_text_is_stored_needs_no_input(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Ada left.")
    settings = {"output.keep_text": True}
    run = concord.annotate(tmp_path / "a.txt", tmp_path / "out", model=MODEL, settings=settings)
    (tmp_path / "a.txt").unlink()
    assert run.document("a.txt").text == "Ada left."
    assert run.to_pandas("documents")["raw_text"].tolist() == ["Ada left."]


def test_only_parts_of_the_manifest_count(run: Run, tmp_path: Path) -> None:
    output = copy_output(Path(run.output), tmp_path / "out")
    part = next((output / "entities").iterdir())
    part.with_name("part-99999-g0-00000000.parquet").write_bytes(part.read_bytes())
    assert concord.open(output).entities.count_rows() == run.entities.count_rows()


def test_too_many_dead_letters_are_an_error_that_leaves_the_run(source: Path, tmp_path: Path) -> None:
    with pytest.raises(DeadLetterLimitError, match=r"1 of 4 records are dead letters, more than max_dead_letters=0\.1"):
        concord.annotate(source, tmp_path / "out", model=MODEL)
    assert concord.open(tmp_path / "out").documents.count_rows() == 3
    again = concord.annotate(source, tmp_path / "out", retry="read", settings={"max_dead_letters": 0.5})
    assert (again.generation, again.errors.to_table()["attempts"].to_pylist()) == (1, [1])


def test_a_job_file_may_be_given(source: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"input: {source}\noutput: {tmp_path / 'out'}\nmax_dead_letters: 0.5\ntagger: {{model: {MODEL}}}\n")
    assert concord.annotate(job, limit=1).documents.count_rows() == 1


def test_settings_win_over_options_and_stay_as_they_are(source: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"input: {source}\noutput: {tmp_path / 'out'}\nmax_dead_letters: 0.5\nlimit: 1\n")
    settings = {"tagger": {"model": MODEL}, "limit": None}
    assert concord.annotate(job, model="entities_multi", limit=2, settings=settings).documents.count_rows() == 3
    assert settings == {"tagger": {"model": MODEL}, "limit": None}


def test_an_open_run_outlives_the_next_run_for_the_grace_period(tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"id": "a", "text": "Ada left Paris."}\n')
    earlier = concord.annotate(texts, tmp_path / "out", model=MODEL)
    texts.write_text('{"id": "a", "text": "Ada left London."}\n')
    later = concord.annotate(texts, tmp_path / "out", model=MODEL)
    assert "London" in later.to_pandas()["text"].tolist()
    assert "Paris" in earlier.to_pandas()["text"].tolist()
    texts.write_text('{"id": "a", "text": "Ada left Geneva."}\n')
    concord.annotate(texts, tmp_path / "out", model=MODEL, settings={"output.grace_seconds": 0})
    with pytest.raises(IntegrityError, match="parts of generation 0 are gone"):
        earlier.to_pandas()


@pytest.mark.slow(reason="labels the sample collection by the default tagger twice")
def test_load_labels_texts_as_a_run_does(annotated_news: Path) -> None:
    """The default tagger, with weight samples and a memory, over the sample collection between many short texts."""
    expected = concord.open(annotated_news).to_pandas()
    texts: dict[str, str] = {}
    for line in (CHECKOUT / "examples" / "news" / "news.jsonl").read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):
            record = json.loads(line)
            where = ("Paris", "Georgia", "Leeds", "Jordan", "Phoenix")[len(texts) % 5]
            texts[f"before {record['id']}"] = f"Ada met {where} in {where}.\n\n{where} was far."
            texts[record["id"]] = record["text"]
    found = concord.load().to_pandas(texts.values(), ids=texts, batch_size=5)
    assert found["doc_id"].str.startswith("before ").sum() >= 13
    found = found[found["doc_id"].isin(expected["doc_id"])].reset_index(drop=True)
    exact = ["doc_id", "entity_id", "sent_id", "start_char", "end_char", "text", "label", "refined"]
    pd.testing.assert_frame_equal(found[exact], expected[exact])
    assert (found["confidence"] - expected["confidence"]).abs().max() < 1e-5
    assert len(found) > 100


def test_wrong_arguments_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="output"):
        concord.annotate(CHECKOUT / "examples" / "news")
    with pytest.raises(ConfigError, match=r"reader\.text_fild"):
        concord.annotate(CHECKOUT / "examples" / "news", tmp_path, settings={"reader.text_fild": "x"})
    with pytest.raises(PlanError):
        concord.open(tmp_path)


def test_collections_in_object_stores_open_too(source: Path, s3_url: str) -> None:
    run = concord.annotate(source, f"{s3_url}/out", model=MODEL, settings={"max_dead_letters": 0.5})
    assert run.entities.count_rows() > 0
    assert concord.open(f"{s3_url}/out").document("voyage").text == TEXTS["voyage"]
