"""Soft corpora: what is read is what was written, and another labelling is refused."""

from pathlib import Path

import numpy as np
import pytest

from concord.models.data.sentence import Sentence
from concord.models.errors import ConfigError
from concord.pipeline.corpora.soft_corpus import (
    CorpusFile,
    Labelling,
    claim_soft_corpus,
    count_shards,
    has_shard,
    is_soft_corpus,
    read_soft_corpus,
    write_labelling,
    write_shard,
)
from concord.pipeline.errors import InputError, IntegrityError
from concord.pipeline.identity import ComponentIdentity

NAMES = ("O", "B-X", "I-X")
LABELLING = Labelling(
    teachers=[ComponentIdentity(name="teacher", digest="1")],
    texts=[CorpusFile(name="texts/a.txt", sha256="2")],
    tokenizer=None,
    scheme="BIO",
    labels=list(NAMES),
    settings={"shard_characters": 9},
)
DOCUMENTS = [
    [Sentence(words=("Ada", "met", "Ada")), Sentence(words=("Yes",))],
    [Sentence(words=("\u00e9t\u00e9", "Ada"))],
]
PROBABILITIES = np.array(
    [[0.2, 0.8, 0], [0.9995, 0.0005, 0], [0.25, 0.5, 0.25], [1, 0, 0], [0.0002, 0.0003, 0.9995], [0.5, 0.5, 0]],
    dtype=np.float32,
)


def write(folder: Path, number: int) -> None:
    write_shard(folder, number, DOCUMENTS, probabilities=PROBABILITIES, uncertainty=np.zeros(6, dtype=np.float32))


def test_reads_the_documents_and_probabilities_that_were_written(tmp_path: Path) -> None:
    folder = tmp_path / "labels"
    assert not is_soft_corpus(folder)
    assert claim_soft_corpus(folder, LABELLING) == LABELLING
    assert claim_soft_corpus(folder, LABELLING) == LABELLING
    assert not has_shard(folder, 0)
    write(folder, 0)
    write_shard(
        folder,
        1,
        [],
        probabilities=np.zeros((0, 3), dtype=np.float32),
        uncertainty=np.zeros(0, dtype=np.float32),
    )
    write(folder, 2)
    assert has_shard(folder, 0)
    with pytest.raises(InputError, match="expected labels of all texts"):
        read_soft_corpus(folder)
    documents, words = count_shards(folder, 3)
    assert (documents, words) == (4, 12)
    write_labelling(folder, LABELLING.model_copy(update={"shards": 3, "documents": documents, "words": words}))

    found = read_soft_corpus(folder)
    assert [[sentence.words for sentence in document] for document in found] == 2 * [
        [sentence.words for sentence in document] for document in DOCUMENTS
    ]
    assert found[0][0].words[0] is found[3][0].words[1]
    rows = iter(2 * [*PROBABILITIES])
    for sentence in (sentence for document in found for sentence in document):
        soft = sentence.soft
        assert soft is not None
        assert soft.probabilities is not None
        assert soft.names == NAMES
        for place in range(len(sentence.words)):
            inside = soft.words == place
            stored = np.zeros(3, dtype=np.float32)
            stored[soft.labels[inside]] = soft.probabilities[inside]
            assert stored.sum() == pytest.approx(1)
            assert stored == pytest.approx(next(rows), abs=1e-3)
    assert len(found[0][0].soft.labels) == 6 if found[0][0].soft is not None else False


def test_refuses_another_labelling_and_a_missing_shard(tmp_path: Path) -> None:
    claim_soft_corpus(tmp_path, LABELLING)
    other = LABELLING.model_copy(update={"teachers": [], "texts": []})
    with pytest.raises(ConfigError, match="another labelling, which differs in teachers, texts; choose another folder"):
        claim_soft_corpus(tmp_path, other)
    write_labelling(tmp_path, LABELLING.model_copy(update={"shards": 1}))
    with pytest.raises(IntegrityError, match=r"00000\.parquet: cannot be read"):
        read_soft_corpus(tmp_path)
    (tmp_path / "labelling.json").write_text("{}")
    with pytest.raises(InputError, match="expected the description of a soft corpus"):
        read_soft_corpus(tmp_path)
