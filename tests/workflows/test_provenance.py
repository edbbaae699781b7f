"""Provenance: what a bundle records of its corpora, and which documents count as seen."""

import json
from pathlib import Path

import pytest

from concord.models.data.sentence import Sentence
from concord.models.errors import ModelError
from concord.workflows.corpora import (
    PROVENANCE_NAME,
    Provenance,
    describe_part,
    document_hash,
    find_overlap,
    read_provenance,
    write_provenance,
)

WORDS = ("the", "old", "mill", "by", "the", "river", "stood", "empty", "for", "years", "after")
OTHER = ("nobody", "in", "the", "valley", "could", "say", "who", "had", "built", "its", "wheel")
SHORT = ("Good", "morning", "!")


def document(*words: str) -> list[Sentence]:
    return [Sentence(words=words)]


@pytest.fixture
def provenance(tmp_path: Path) -> Provenance:
    path = tmp_path / "corpus" / "train.conll"
    path.parent.mkdir()
    path.write_text("anything")
    return Provenance(parts=[describe_part("train", [str(path), str(path)], [document(*WORDS), document(*SHORT)])])


def test_document_hash_ignores_sentence_boundaries() -> None:
    assert document_hash(document(*WORDS)) == document_hash([*document(*WORDS[:3]), *document(*WORDS[3:])])
    assert document_hash(document(*WORDS)) != document_hash(document(*OTHER))
    assert len(document_hash(document("\ud800"))) == 16


def test_describe_part_lists_a_repeated_file_once(provenance: Provenance) -> None:
    ((file,),) = (part.files for part in provenance.parts)
    assert file.name == "corpus/train.conll"
    assert len(file.sha256) == 64


def test_find_overlap_counts_seen_documents_and_skips_short_ones(provenance: Provenance) -> None:
    found = find_overlap(provenance, [document(*WORDS), document(*WORDS), document(*OTHER), document(*SHORT)])
    assert (found.compared, found.short, found.seen) == (3, 1, {"train": 2})
    assert str(found) == ("of 3 documents 2 in what it was trained on (1 of fewer than 10 words not compared)")
    assert find_overlap(provenance, [document(*OTHER)]).seen == {}


def test_with_part_replaces_the_part_of_the_same_role(provenance: Provenance) -> None:
    path = [part.files[0].name for part in provenance.parts]
    again = provenance.with_part(provenance.parts[0].model_copy(update={"documents": []}))
    assert [part.files[0].name for part in again.parts] == path
    assert again.parts[0].documents == []
    assert len(again.with_part(again.parts[0].model_copy(update={"role": "calibration"})).parts) == 2


def test_written_provenance_is_read_back(provenance: Provenance, tmp_path: Path) -> None:
    assert read_provenance(tmp_path) is None
    write_provenance(tmp_path, provenance)
    assert read_provenance(tmp_path) == provenance
    assert "mill" not in (tmp_path / PROVENANCE_NAME).read_text()


@pytest.mark.parametrize("content", ["{", "[]", '{"parts": 3}', json.dumps({"format_version": 2, "parts": []})])
def test_read_provenance_raises_model_error_when_the_file_is_invalid(tmp_path: Path, content: str) -> None:
    (tmp_path / PROVENANCE_NAME).write_text(content)
    with pytest.raises(ModelError, match=r"provenance\.json"):
        read_provenance(tmp_path)
