"""The worker with the real parser and a tiny random tagger of two stages."""

import gc
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from concord_testing.encoders import write_encoder
from concord_testing.runs import committed_bytes, job, resolved
from concord_testing.tiny_taggers import TWO_STAGE

from concord.models.bundles.checkpoint import save_tagger
from concord.models.bundles.manifest import tagger_digest
from concord.models.bundles.registry import build_tagger
from concord.models.data.sentence import Sentence, visible
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ModelError
from concord.pipeline.annotate import annotate
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.output.verify import verify
from concord.pipeline.resources import existing_objects_frozen

pytestmark = pytest.mark.slow

TEXTS = (
    "Maria Gonzalez flew to Geneva. She met Bob there.\r\n\r\nGeneva was cold; they couldn't stay.",
    "",
    " \n\t ",
    "The list: " + ", ".join(f"item{number} of Geneva" for number in range(90)) + ".",
    "Caf\u00e9 cafe\u0301 \U0001f600 \u200d in Geneva.\u2028Bob's e\u0301t\u00e9\u2026",
    "a" * 3000,
)


SENTENCE = Sentence(
    words=("Maria", "Gonzalez", "met", "Bob", "in", "Geneva"), labels=("B-PER", "I-PER", "O", "B-PER", "O", "B-LOC")
)


def save_tiny(folder: Path, **changes: Any) -> ResolvedTagger:
    """Save a random Doc-UANet, uncertain about most words, with windows shorter than the longest sentence."""
    config = TWO_STAGE | {"samples": 2, "window_words": 64, "window_overlap": 16} | changes
    torch.manual_seed(1)
    built = build_tagger("doc_uanet", config, Vocabulary.from_sentences([SENTENCE]))
    save_tagger(built.eval(), folder)
    return ResolvedTagger(name="tiny", version=None, digest=tagger_digest(folder), folder=folder)


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> ResolvedTagger:
    return save_tiny(tmp_path_factory.mktemp("taggers") / "tiny")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of documents that are hard to tokenize."""
    path = tmp_path_factory.mktemp("source") / "in.jsonl"
    path.write_text("".join(json.dumps({"id": f"d{number}", "text": text}) + "\n" for number, text in enumerate(TEXTS)))
    return path


@pytest.fixture(scope="module")
def annotated(source: Path, tagger: ResolvedTagger) -> Path:
    """The output of a run over that file."""
    output = source.parent / "out"
    report = annotate(resolved(job(source, output), tagger=tagger, parser=None))
    assert (report.read, report.annotated, report.dead_letters) == (6, 6, 0)
    return output


def test_every_document_is_annotated_with_correct_offsets(annotated: Path) -> None:
    assert verify(annotated) == []
    sentences = pq.read_table(annotated / "sentences")
    assert pc.max(sentences["n_tokens"]).as_py() <= 200
    assert pc.sum(sentences["continues"].cast("int32")).as_py() >= 1
    tokens = pq.read_table(annotated / "tokens").to_pylist()
    assert any(token["refined"] for token in tokens)
    for number, text in enumerate(TEXTS):
        spans = [token for token in tokens if token["doc_id"] == f"d{number}"]
        assert all(text[token["start_char"] : token["end_char"]] == token["text"] for token in spans)
        covered = {place for token in spans for place in range(token["start_char"], token["end_char"])}
        assert not visible("".join(text[place] for place in range(len(text)) if place not in covered)).strip()


def test_output_is_the_same_with_a_moved_tagger(
    source: Path, annotated: Path, tmp_path: Path, tagger: ResolvedTagger
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(tagger.folder, moved)
    found = ResolvedTagger(name=tagger.name, version=None, digest=tagger.digest, folder=moved)
    annotate(resolved(job(source, tmp_path / "b"), tagger=found, parser=None))
    assert committed_bytes(annotated) == committed_bytes(tmp_path / "b")


@pytest.mark.encoder
@pytest.mark.slow(reason="makes an encoder, and loads it and the parser")
def test_tagger_with_a_tuned_encoder_runs_from_its_folder_alone(source: Path, tmp_path: Path) -> None:
    pretrained = tmp_path / "pretrained"
    pretrained.mkdir()
    write_encoder(pretrained, ["maria", "met", "bob", "in", "geneva", "was", "cold", "item", "##s", "."])
    values = {"source": str(pretrained), "sha256": None, "last_layers": 1, "tuned": True}
    tagger = save_tiny(tmp_path / "tagger", encoder=values)
    shutil.rmtree(pretrained)
    moved = ResolvedTagger(
        name="tiny", version=None, digest=tagger.digest, folder=tagger.folder.rename(tmp_path / "moved")
    )
    report = annotate(resolved(job(source, tmp_path / "a"), tagger=moved, parser=None))
    assert (report.read, report.annotated, report.dead_letters) == (6, 6, 0)


@pytest.mark.parametrize("harm", ["weights.safetensors", "tagger.json"])
def test_tagger_other_than_the_planned_one_is_rejected(
    source: Path, tmp_path: Path, tagger: ResolvedTagger, harm: str
) -> None:
    folder = tmp_path / "tagger"
    shutil.copytree(tagger.folder, folder)
    with (folder / harm).open("ab") as stream:
        stream.write(b"\n")
    changed = ResolvedTagger(name="tiny", version=None, digest=tagger.digest, folder=folder)
    with pytest.raises(ModelError, match="not the tagger that the plan names"):
        annotate(resolved(job(source, tmp_path / "out"), tagger=changed, parser=None))
    shutil.rmtree(folder)
    with pytest.raises(ModelError, match=r"tagger\.json"):
        annotate(resolved(job(source, tmp_path / "out"), tagger=changed, parser=None))


def test_existing_objects_are_frozen_while_shards_are_done() -> None:
    with existing_objects_frozen():
        assert gc.get_freeze_count() > 10_000
    assert gc.get_freeze_count() == 0
