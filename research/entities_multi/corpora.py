"""What the trainings read: English corpora and texts, corpora of further languages, and the encoder's states."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from concord.models.data.sentence import Sentence, allowed_labels, with_passages
from concord.models.data.vocabulary import Vocabulary
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.corpora.gold_corpus import write_gold
from concord.workflows.corpora import SeenDocuments, describe_part, read_corpora, read_documents
from research.entities_en.learning import Documents
from research.entities_en.prepared import Prepared, flat
from research.entities_en.silver import GOLD_TYPES
from research.parser_multi.texts import contraction

UNER = ("pt", "hr", "sr", "da", "sk", "sv")
NEWSPAPERS = ("nl", "fr", "de_lft", "de_onb", "de_sbb")
LANGUAGES = (*UNER, "no", *NEWSPAPERS)
PASSAGE_WORDS = 190
Part = Literal["english", "languages", "texts", "english-dev", "languages-dev"]
"""Train parts, texts without labels, and dev parts; rows of numbers in a file are those of a part's words in order."""
PARTS: tuple[Part, ...] = ("english", "languages", "texts", "english-dev", "languages-dev")
_LONGEST = 256
_DEV_SHARE = 0.1
_IN_PASSAGES = 0.67
_NORNE = {"GPE_LOC": "LOC", "GPE_ORG": "ORG"}
_LEAST = 1e-4


def write_language(name: str, part: str, labelled: Path, treebanks: Path, work: Path) -> SeenDocuments:
    """Write a part of a language's corpus, and return what it has; every second Portuguese document is contracted.

    Norwegian has the dev parts of two treebanks, of which the last tenths are the dev part. Their names of other types
    than the gold ones are words of which nothing is known in the train part.
    """
    if name != "no":
        corpus = f"{'uner' if name in UNER else 'europeana'}_{name}"
        paths = [str(next((labelled / corpus).glob(f"{part}.con*")))]
        documents = read_documents(paths, labels={})
    else:
        paths, documents = sorted(map(str, treebanks.glob("no_*_norne.dev.*"))), []
        for path in paths:
            read = read_documents([path], labels=_NORNE, form=GoldFormat(label_column="name"))
            cut = round((1 - _DEV_SHARE) * len(read))
            documents += read[:cut] if part == "train" else read[cut:]
    change = _contracted if name == "pt" and part == "train" else with_gold_types
    documents = [
        replace(one, sentences=tuple(map(change if number % 2 else with_gold_types, one.sentences)))
        for number, one in enumerate(documents)
    ]
    if part == "dev":
        documents = [
            replace(one, sentences=tuple(replace(each, known=None) for each in one.sentences)) for one in documents
        ]
    (work / "corpora" / name).mkdir(parents=True, exist_ok=True)
    write_gold(work / "corpora" / name / f"{part}.conll", documents, form="conll")
    return describe_part("train" if part == "train" else "dev", paths, [one.sentences for one in documents])


def with_gold_types(sentence: Sentence) -> Sentence:
    """Return words and labels of a sentence; of words of names of other types than the gold ones nothing is known."""
    labels = sentence.labels or ()
    known = tuple(label == "O" or label[2:] in GOLD_TYPES for label in labels)
    kept = tuple(label if is_known else "O" for label, is_known in zip(labels, known, strict=True))
    return Sentence(words=sentence.words, labels=kept, known=None if all(known) else known)


def _contracted(sentence: Sentence) -> Sentence:
    words: list[str] = []
    labels: list[str] = []
    for word, label in zip(sentence.words, sentence.labels or (), strict=True):
        is_one = words and not label.startswith("B-") and (label == "O") == (labels[-1] == "O")
        written = contraction(words[-1], word) if is_one else None
        if written is None:
            words.append(word)
            labels.append(label)
        else:
            words[-1] = written
    return Sentence(words=tuple(words), labels=tuple(labels))


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpora:
    """The documents of each corpus, by part."""

    prepared: Prepared
    languages: Mapping[str, Mapping[str, Documents]]
    """``train`` and ``dev``, by language."""

    @classmethod
    def read(cls, work: Path) -> "Corpora":
        """Read what ``prepare`` and ``write_language`` wrote; of the train parts no very long sentences."""
        languages = {
            part: {name: _read(work / "corpora" / name / f"{part}.conll", longest) for name in LANGUAGES}
            for part, longest in (("train", _LONGEST), ("dev", 10**6))
        }
        return cls(prepared=Prepared.read(work), languages=languages)

    def of(self, part: Part) -> Mapping[str, Documents]:
        """Return the documents of a part, by corpus."""
        if part == "texts":
            return {part: self.prepared.texts}
        if part.startswith("english"):
            return self.prepared.train if part == "english" else self.prepared.dev
        return self.languages["train" if part == "languages" else "dev"]

    def documents(self, *parts: Part) -> list[Sequence[Sentence]]:
        """Return the documents of parts, in the order of their rows."""
        return [document for part in parts for documents in self.of(part).values() for document in documents]

    def sentences(self, *parts: Part) -> list[Sentence]:
        """Return the sentences of parts, in the order of their rows."""
        return flat(self.documents(*parts))


def _read(path: Path, longest: int) -> Documents:
    documents = read_corpora([str(path)], labels={})
    kept = ([one for one in document if 0 < len(one.words) <= longest] for document in documents)
    return [document for document in kept if document]


def save(value: object, path: Path) -> None:
    """Atomically write a file that ``torch.load`` reads: a step that was interrupted has left none."""
    partial = path.with_name(f"{path.name}.partial")
    torch.save(value, partial)
    partial.replace(path)


def load(work: Path, name: str) -> Any:
    """Read such a file of the working folder, and of its tensors what is used."""
    return torch.load(work / name, weights_only=True, mmap=True)


def read_at_once(document: Sequence[Sentence], words: int) -> Iterator[tuple[str, ...]]:
    """Yield the words of a document that the encoder reads at once: passages of so many, or sentences for 0."""
    if not words:
        yield from (sentence.words for sentence in document)
        return
    passages = (sentence.passage for sentence in with_passages(document, words))
    yield from (passage.words for passage in dict.fromkeys(passages) if passage is not None)


def alone(documents: Documents) -> list[bool]:
    """Return which documents stage one reads sentence by sentence, though they have several."""
    draw = random.Random(1)
    return [draw.random() >= _IN_PASSAGES and len(document) > 1 for document in documents]


def mixed_states(work: Path, corpora: Corpora, parts: Sequence[Part]) -> Tensor:
    """Return the states of parts, of most documents in passages, of the others in sentences; ``(N, 384)``, fp16."""
    rows = torch.cat([load(work, f"passages-{part}.pt") for part in parts])
    place = 0
    for part in parts:
        single, used = load(work, f"sentences-{part}.pt"), 0
        documents = corpora.documents(part)
        for document, is_alone in zip(documents, alone(documents), strict=True):
            words = sum(len(sentence.words) for sentence in document)
            if is_alone:
                rows[place : place + words] = single[used : used + words]
                used += words
            place += words
    return rows


def gold_rows(sentences: Sequence[Sentence], vocabulary: Vocabulary, *, lacks: Sequence[str] = ()) -> Tensor:
    """Return 1 for each label that a word may have where a corpus lacks some types, shape ``(N, L)``, fp16."""
    rows = torch.zeros(sum(len(one.words) for one in sentences), len(vocabulary.labels), dtype=torch.half)
    first = 0
    for one in sentences:
        found = allowed_labels(
            one.labels or (), vocabulary.labels, lacks=lacks, scheme=vocabulary.scheme, known=one.known
        )
        rows[first + torch.from_numpy(found.words).long(), torch.from_numpy(found.labels).long()] = 1
        first += len(one.words)
    return rows


def gold_and_silver(sentences: Sequence[Sentence], silver: Tensor, vocabulary: Vocabulary, *, gold: float) -> Tensor:
    """Return what words of further languages teach, shape ``(N, L)``, fp16.

    A share is the gold label; where gold leaves several open, they have the proportions of the silver probabilities.
    The rest is silver.
    """
    lacks = [kind for kind in vocabulary.entity_types if kind not in GOLD_TYPES]
    within = (silver.float() + _LEAST) * gold_rows(sentences, vocabulary, lacks=lacks)
    return (gold * within / within.sum(dim=1, keepdim=True) + (1 - gold) * silver).half()
