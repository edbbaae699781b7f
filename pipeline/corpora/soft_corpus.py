"""Soft corpora: a folder of texts with the label probabilities of teachers, written by ``concord distil``.

Each shard is a Parquet file with a row per sentence. ``labelling.json`` says what was labelled by whom, so that an
interrupted labelling continues and another one is not mixed in.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from concord.models.config import Config
from concord.models.data.sentence import Sentence
from concord.models.data.soft_labels import SoftLabels
from concord.models.errors import ConfigError
from concord.models.labels.schemes import SchemeName
from concord.pipeline.errors import InputError, IntegrityError
from concord.pipeline.identity import ComponentIdentity
from concord.pipeline.storage.atomic_writes import move_into_place, stage_file, store_errors, write_atomically
from concord.pipeline.storage.files import file_sha256

LABELLING_NAME = "labelling.json"
_STAGING = ".staging"
# A label is stored if it has at least this probability or is the most probable one; the rest is shared among those.
_LEAST_PROBABILITY = 1e-3


class CorpusFile(Config):
    """One file of a corpus or of texts."""

    name: str
    """The file's name with its folder's."""
    sha256: str

    @classmethod
    def of(cls, path: str) -> Self:
        """Hash a file, given by its path or URL."""
        return cls(name="/".join(PurePath(path).parts[-2:]), sha256=file_sha256(path))


class Labelling(Config):
    """What a soft corpus is made of."""

    format_version: Literal[1] = 1
    teachers: list[ComponentIdentity]
    texts: list[CorpusFile]
    tokenizer: str | None
    """Signature of the parser that split the texts; None if all texts were split already."""
    scheme: SchemeName
    labels: list[str]
    settings: dict[str, Any]
    """The settings of the teachers and the reader."""
    shards: int | None = None
    """None until all texts are labelled."""
    documents: int = 0
    words: int = 0


def is_soft_corpus(path: str | Path) -> bool:
    """Return whether a path is the folder of a soft corpus."""
    return (Path(path) / LABELLING_NAME).is_file()


def read_labelling(folder: Path) -> Labelling:
    """Return what a soft corpus is made of; InputError if its file is not of this format."""
    path = folder / LABELLING_NAME
    try:
        return Labelling.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: expected the description of a soft corpus, got {error}") from error


def write_labelling(folder: Path, labelling: Labelling) -> None:
    """Atomically write what a soft corpus is made of."""
    content = f"{labelling.model_dump_json(indent=1)}\n".encode()
    write_atomically(folder / LABELLING_NAME, content, staging=folder / _STAGING)


def claim_soft_corpus(folder: Path, labelling: Labelling) -> Labelling:
    """Start or continue a soft corpus in a folder; return its description so far.

    Raises:
        ConfigError: when the folder holds the labels of other teachers or texts.
    """
    if not is_soft_corpus(folder):
        write_labelling(folder, labelling)
        return labelling
    existing = read_labelling(folder)
    decisive = ("format_version", "teachers", "texts", "tokenizer", "scheme", "labels", "settings")
    if differences := [name for name in decisive if getattr(existing, name) != getattr(labelling, name)]:
        raise ConfigError(
            f"{folder}: contains another labelling, which differs in {', '.join(differences)}; choose another folder"
        )
    return existing


def has_shard(folder: Path, number: int) -> bool:
    """Return whether a shard is written."""
    return _shard_path(folder, number).is_file()


def write_shard(
    folder: Path,
    number: int,
    documents: Sequence[Sequence[Sentence]],
    *,
    probabilities: NDArray[np.float32],
    uncertainty: NDArray[np.float32],
) -> None:
    """Atomically write documents, whose sentences have words, with the labels of all N words in reading order.

    Args:
        probabilities: shape ``(N, L)``; only those that matter are stored, and sum to 1.
        uncertainty: nats, shape ``(N,)``.

    Raises:
        StoreError: when there is no space.
    """
    sentences = [sentence for document in documents for sentence in document]
    ends = np.cumsum([0, *(len(sentence.words) for sentence in sentences)], dtype=np.int32)
    kept = probabilities >= _LEAST_PROBABILITY
    kept[np.arange(len(kept)), probabilities.argmax(axis=1)] = True
    words, labels = kept.nonzero()
    shares = np.where(kept, probabilities, 0)
    shares /= shares.sum(axis=1, keepdims=True)
    entries = np.searchsorted(words, ends).astype(np.int32)
    places = words - np.repeat(ends[:-1], np.diff(entries))
    table = pa.table(
        {
            "document": pa.array(
                [place for place, document in enumerate(documents) for _ in document], type=pa.int32()
            ),
            "words": _lists(ends, pa.array([word for sentence in sentences for word in sentence.words], pa.string())),
            "uncertainty": _lists(ends, pa.array(uncertainty, pa.float32())),
            "word": _lists(entries, pa.array(places, pa.int32())),
            "label": _lists(entries, pa.array(labels, pa.int16())),
            "probability": _lists(entries, pa.array(shares[kept], pa.float32())),
        }
    )
    table = table.replace_schema_metadata({"documents": str(len(documents)), "words": str(ends[-1])})
    path = _shard_path(folder, number)
    with store_errors(path):
        move_into_place(stage_file(folder / _STAGING, partial(pq.write_table, table, compression="zstd")), path)


def count_shards(folder: Path, shards: int) -> tuple[int, int]:
    """Return the numbers of documents and of words in all shards."""
    counts = [pq.read_schema(_shard_path(folder, number)).metadata for number in range(shards)]
    return sum(int(count[b"documents"]) for count in counts), sum(int(count[b"words"]) for count in counts)


def read_soft_corpus(folder: Path) -> list[list[Sentence]]:
    """Return the documents of a soft corpus.

    Raises:
        InputError: when the labelling is not finished.
        IntegrityError: when a shard is missing or damaged.
    """
    labelling = read_labelling(folder)
    if labelling.shards is None:
        raise InputError(f"{folder}: expected labels of all texts, got those of some; finish it with 'concord distil'")
    names, spellings = tuple(labelling.labels), dict[str, str]()
    return [
        document
        for number in range(labelling.shards)
        for document in _read_shard(_shard_path(folder, number), names, spellings)
    ]


def _read_shard(path: Path, names: tuple[str, ...], spellings: dict[str, str]) -> list[list[Sentence]]:
    """Return the documents of a shard; equal words become one object, by way of ``spellings``."""
    try:
        table = pq.read_table(path, columns=["document", "words", "word", "label", "probability"])
    except (OSError, pa.ArrowException) as error:
        raise IntegrityError(f"{path}: cannot be read: {error}; remove the file and label it again") from error
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    encoded = pc.dictionary_encode(columns["words"].values)
    distinct = np.array([spellings.setdefault(word, word) for word in encoded.dictionary.to_pylist()], dtype=np.object_)
    words = distinct[encoded.indices.to_numpy()].tolist() if len(distinct) else []
    places, labels, shares = (columns[name].values.to_numpy() for name in ("word", "label", "probability"))
    ends, entries = (columns[name].offsets.to_numpy().tolist() for name in ("words", "word"))
    documents: list[list[Sentence]] = []
    for row, document in enumerate(columns["document"].to_pylist()):
        inside = slice(entries[row], entries[row + 1])
        soft = SoftLabels(names=names, words=places[inside], labels=labels[inside], probabilities=shares[inside])
        if document >= len(documents):
            documents.append([])
        documents[-1].append(Sentence(words=tuple(words[ends[row] : ends[row + 1]]), soft=soft))
    return documents


def _lists(offsets: NDArray[np.int32], values: Any) -> Any:
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _shard_path(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.parquet"
