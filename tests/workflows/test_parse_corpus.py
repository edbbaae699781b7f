"""Parsing a gold corpus, and training and annotating with a tagger of the parser's trees."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import spacy
from concord_testing.checkout import CHECKOUT
from concord_testing.command_line import concord, concord_json

from concord.models.bundles.checkpoint import load_tagger
from concord.models.errors import ConcordError, ConfigError, ModelError
from concord.nlp import load
from concord.pipeline.config import ParserConfig
from concord.pipeline.corpora.gold_corpus import read_gold
from concord.pipeline.errors import InputError
from concord.pipeline.identity import component_signature
from concord.pipeline.parsing.resolve_parser import parser_identity
from concord.workflows.corpora import read_corpora, tree_source
from concord.workflows.prepare import parse_command, read_parse_job
from concord.workflows.training import train
from concord.workflows.training.job import read_train_job
from concord.workflows.training.train import TrainOptions

pytestmark = pytest.mark.slow

GOLD = CHECKOUT / "examples/train"
SIGNATURE = component_signature(parser_identity(ParserConfig()))
ANOTHER_PARSER = "concord.pipeline.parsing.stanza_packages.SENTENCE_CAP"
"""What makes the parser another one where it is replaced."""
TRAIN_YAML = """\
tagger: dependency_aware
data:
  train: [{train}]
  dev: {dev}
profiles:
  small:
    model:
      representation: {{word_dimension: 16, characters: null, dropout: 0.0, rare_to_unknown: 0.1}}
      input_dropout: 0.0
      dropout: 0.0
    fit:
      epochs: 12
      batch_sentences: 8
      optimizers: {{tagger: {{learning_rate: 1e-2}}}}
"""


@pytest.fixture
def blank(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the package of a spaCy pipeline without a parser."""
    folder = tmp_path_factory.mktemp("spacy") / "blank"
    spacy.blank("en").to_disk(folder)
    return f"spacy:{folder}"


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parse the sample corpus and return its folder."""
    folder = tmp_path_factory.mktemp("parsed")
    for name in ("train", "dev"):
        assert concord_json("parse", GOLD / f"{name}.conllu", "-o", folder / f"{name}.conllu.zst")["parsed"] is True
    return folder


def train_tagger(folder: Path, corpora: Path, suffix: str, *overrides: str) -> Path:
    """Train a tiny tagger and return its bundle."""
    path = folder / "tiny.yaml"
    path.write_text(TRAIN_YAML.format(train=corpora / f"train.{suffix}", dev=corpora / f"dev.{suffix}"))
    options = TrainOptions(folder=folder / "trained", tracked=False)
    return train.train(read_train_job(path, overrides=overrides), options).bundle


@pytest.fixture(scope="module")
def bundle(parsed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a tiny tagger on the parser's trees."""
    return train_tagger(tmp_path_factory.mktemp("tagger"), parsed, "conllu.zst")


def test_parse_adds_trees_and_keeps_documents_words_and_labels(parsed: Path) -> None:
    before = read_gold(GOLD / "train.conllu")
    after = read_corpora([str(parsed / "train.conllu.zst")], labels={}, trees=True)
    assert [[(sentence.words, sentence.labels) for sentence in document] for document in after] == [
        [(sentence.words, sentence.labels) for sentence in document] for document in before
    ]
    assert {tag for document in after for sentence in document for tag in sentence.tags or ()} >= {"PROPN", "VERB"}
    assert all((sentence.heads or ()).count(0) == 1 for document in after for sentence in document)
    assert tree_source(str(parsed / "train.conllu.zst")) == SIGNATURE
    assert tree_source(str(GOLD / "train.conllu")) == "gold"
    assert sorted(path.name for path in parsed.iterdir()) == ["dev.conllu.zst", "train.conllu.zst"]


def test_parse_reads_columns_of_words_and_labels(tmp_path: Path) -> None:
    source, output = tmp_path / "gold.conll", tmp_path / "made" / "gold.conllu"
    source.write_text("-DOCSTART-\tx\n\nMira\tB-PER\nsmiled\tO\n.\tO\n\n-DOCSTART-\ty\n\nYes\tO\n")
    parse_command(read_parse_job({"input": str(source), "output": str(output)}))
    lines = output.read_text().splitlines()
    assert lines[0] == f"# concord.parser = {SIGNATURE}"
    assert lines[2] == "# newdoc"
    assert lines[3].split("\t") == [
        *("1", "Mira", "Mira", "PROPN", "NNP", "Number=Sing", "2", "nsubj", "_", "NER=B-PER"),
    ]
    assert [[sentence.words for sentence in document] for document in read_gold(output)] == [
        [("Mira", "smiled", ".")],
        [("Yes",)],
    ]


def test_parse_runs_again_only_when_corpus_or_parser_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, output = tmp_path / "gold.conll", tmp_path / "gold.conllu.gz"
    source.write_text("Mira\tB-PER\nsmiled\tO\n")
    values = {"input": str(source), "output": str(output)}
    assert parse_command(read_parse_job(values)).values["parsed"] is True
    made = output.stat()
    assert parse_command(read_parse_job(values)).values["parsed"] is False
    assert (output.stat().st_ino, output.stat().st_mtime_ns) == (made.st_ino, made.st_mtime_ns)
    monkeypatch.setattr(ANOTHER_PARSER, 50)
    assert parse_command(read_parse_job(values)).values["parsed"] is True
    source.write_text("Mira\tB-PER\nslept\tO\n")
    assert parse_command(read_parse_job(values)).values["parsed"] is True
    assert read_gold(output)[0][0].words == ("Mira", "slept")


@pytest.mark.parametrize(
    ("output", "text", "fault"),
    [
        ("out.conll", "Mira\tB-PER\n", "expected a name that ends in .conllu"),
        ("gold.conll", "Mira\tB-PER\n", "expected a name that ends in .conllu"),
        ("link.conllu", "Mira\tB-PER\n", "another file than the input"),
        ("trees.conllu", "Mira\tB-PER\n", r"trees\.conllu, which has no trees of a parser; choose another name"),
        ("out.conllu", "\n", "with one sentence or more, got none"),
    ],
)
def test_parse_refuses_what_it_cannot_parse_or_replace(tmp_path: Path, output: str, text: str, fault: str) -> None:
    source, other = tmp_path / "gold.conll", tmp_path / "trees.conllu"
    source.write_text(text)
    other.write_text("1\tMira\t_\tPROPN\t_\t_\t0\troot\t_\tNER=B-PER\n\n")
    (tmp_path / "link.conllu").symlink_to(source)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConcordError, match=fault):
        parse_command(read_parse_job({"input": str(source), "output": str(tmp_path / output)}))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_parse_asks_for_a_parser_that_makes_all_trees(tmp_path: Path, blank: str) -> None:
    source, output = tmp_path / "gold.conll", tmp_path / "gold.conllu"
    source.write_text("Mira\tB-PER\n")
    job = {"input": str(source), "output": str(output), "parser": {"package": blank}}
    with pytest.raises(ModelError, match=f"expected a parser that finds trees, got {blank}"):
        parse_command(read_parse_job(job))
    with pytest.raises(ConfigError, match="parser: expected trees: true"):
        read_parse_job(job, overrides=["parser.trees=false"])
    assert not output.exists()


def test_tagger_of_parsed_trees_annotates_with_the_same_parser(bundle: Path, tmp_path: Path) -> None:
    assert load_tagger(bundle).trees == SIGNATURE
    texts = tmp_path / "texts.jsonl"
    records = [{"id": "a", "text": "Mira Solberg runs the ferry in Bergen."}, {"id": "b", "text": "It rained."}]
    texts.write_text("".join(json.dumps(record) + "\n" for record in records))
    result = concord("annotate", texts, "-o", tmp_path / "out", "-m", bundle, "--json")
    assert result.exit_code == 0, result.output
    rows = pq.read_table(tmp_path / "out" / "entities").to_pylist()
    assert [(row["doc_id"], row["text"], row["label"]) for row in rows] == [
        ("a", "Mira Solberg", "PER"),
        ("a", "Bergen", "LOC"),
    ]
    assert "[Bergen LOC]" in concord("tag", records[0]["text"], "-m", bundle).output


def test_annotate_refuses_other_trees_than_those_that_the_tagger_read(
    bundle: Path, blank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text("It rained.")
    command = ("annotate", tmp_path / "text.txt", "-o", tmp_path / "out", "--dry-run", "-m")
    accepted = ("--set", "tagger.accept_parser=true")
    assert concord(*command, bundle).exit_code == 0
    with monkeypatch.context() as patch:
        patch.setattr(ANOTHER_PARSER, 50)
        refused = concord(*command, bundle)
        assert concord(*command, bundle, *accepted).exit_code == 0
    assert refused.exit_code == 2
    assert f"learned from the trees of '{SIGNATURE}', this run parses with 'stanza/parser_en@" in refused.output
    assert "--set tagger.accept_parser=true" in refused.output
    gold = train_tagger(tmp_path, GOLD, "conllu", "fit.epochs=1")
    assert load_tagger(gold).trees == "gold"
    for tagger, options, message in (
        (bundle, ("--no-trees", *accepted), "finds none (parser.trees: false); set parser.trees=true (--trees)"),
        (bundle, ("--set", f"parser.package={blank}", *accepted), f"reads dependency trees, and {blank} finds none"),
        (gold, (), "learned from the trees of 'gold'"),
    ):
        refused = concord(*command, tagger, *options)
        assert (refused.exit_code, message in refused.output) == (2, True), refused.output
    assert not (tmp_path / "out").exists()
    with pytest.raises(ModelError, match="reads dependency trees"):
        load(bundle, settings={"parser.trees": False})


def test_train_refuses_corpora_with_trees_of_two_sources(parsed: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected trees of one parser in all corpora .* got .*dev\.conllu: gold"):
        train_tagger(tmp_path, parsed, "conllu.zst", f"data.dev={GOLD}/dev.conllu")


def test_train_and_evaluate_refuse_a_corpus_without_trees(bundle: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.conll"
    bare.write_text("Mira\tB-PER\nsmiled\tO\n")
    fault = r"bare\.conll: .* got a sentence without: 'Mira smiled'; run `concord parse`"
    with pytest.raises(InputError, match=fault):
        train_tagger(tmp_path, GOLD, "conllu", f"data.train=[{bare}]")
    refused = concord("evaluate", bundle, "-d", bare)
    assert refused.exit_code == 2
    assert "got a sentence without: 'Mira smiled'; run `concord parse`" in refused.output


def test_read_corpora_names_file_and_word_of_a_broken_tree(tmp_path: Path) -> None:
    broken = tmp_path / "broken.conllu"
    rows = [("1", "It", "_", "PRON", "_", "_", "2", "nsubj", "_", "_"), ("2", "rained", "_", "VERB") + ("_",) * 6]
    rows[1] = (*rows[1][:6], "1", "root", "_", "_")
    broken.write_text("\n".join("\t".join(row) for row in rows) + "\n")
    with pytest.raises(InputError, match=r"broken\.conllu: heads: word 1, 'It', .* no word of the sentence is a root"):
        read_corpora([str(broken)], labels={}, trees=True)


def test_evaluate_warns_of_trees_of_another_source(bundle: Path, parsed: Path) -> None:
    scored = concord("evaluate", bundle, "-d", GOLD / "dev.conllu")
    assert scored.exit_code == 0
    assert f"learned from trees of '{SIGNATURE}', {GOLD}/dev.conllu has those of 'gold'" in scored.stderr
    assert "learned from trees" not in concord("evaluate", bundle, "-d", parsed / "dev.conllu.zst").stderr
