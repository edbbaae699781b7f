"""Read corpora and open texts, and what spaCy's pipeline predicts in them, into the file that the trainings read."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import click
import pyarrow as pa
import torch
from torch import Tensor

from concord.models.data.sentence import Sentence
from concord.models.labels import BIOES, decode_spans
from concord.models.training.fit import split_long
from concord.pipeline.config import ParserConfig
from concord.pipeline.corpora.gold_corpus import write_gold
from concord.pipeline.documents import Document
from concord.pipeline.parsing.stanza_parser import StanzaParser
from concord.workflows.corpora import (
    Provenance,
    Role,
    describe_part,
    read_corpora,
    read_documents,
    write_provenance,
)
from research.entities_en.guideline import CORPORA, LABELS
from research.entities_en.learning import Documents
from research.entities_en.prepared import Prepared, flat
from research.entities_en.silver import add_silver
from research.entities_en.spacy_labels import SpacyLabels
from research.texts import split_texts

_LONGEST = 256
_LONGEST_TEXT = 120_000
_PER_CENT = {"percent", "%"}
_BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
_CHECKED = (_BENCHMARKS / "hand_checked_en.json", _BENCHMARKS / "hand_checked_types_en.json")


@click.command(help=__doc__)
@click.argument("work", type=click.Path(path_type=Path, file_okay=False))
@click.option("--corpora", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
@click.option("--text", type=click.Path(path_type=Path, exists=True, dir_okay=False), multiple=True, required=True)
@click.option("--words", default=400_000, show_default=True, help="Words of each file of open texts.")
def main(work: Path, corpora: Path, text: Sequence[Path], words: int) -> None:
    """Write WORK/prepared.pt, and corpora in WORK/corpora; texts are files of JSON lines."""
    work.mkdir(parents=True, exist_ok=True)
    spacy = SpacyLabels()
    parts = {part: _read(corpora, part) for part in ("train", "dev")}
    drawn = [found for path in text for found in _draw(path, words)]
    write_provenance(work, _provenance(corpora, parts, text, drawn))
    parts["train"] = {name: with_per_cent(documents) for name, documents in parts["train"].items()}
    texts = with_per_cent(drawn)
    seen: dict[str, Tensor] = {}
    silver = {}
    for part, found in parts.items():
        predicted = list(spacy.predict([one.words for documents in found.values() for one in flat(documents)]))
        seen[part] = _numbers(predicted, spacy)
        dropped: Counter[str] = Counter()
        labels = iter(predicted)
        silver[part] = {name: _with_silver(documents, labels, dropped) for name, documents in found.items()}
        click.echo(json.dumps({part: {"names": _count(silver[part]), "dropped": dict(sorted(dropped.items()))}}))
    seen["texts"] = _numbers(spacy.predict([one.words for one in flat(texts)]), spacy)
    for name in CORPORA:
        for part in ("dev", "test"):
            write_with_silver(corpora / name, part, spacy, work / "corpora" / name)
    Prepared(train=silver["train"], dev=silver["dev"], texts=texts, seen=seen, labels=len(spacy.names)).save(work)


def _provenance(
    corpora: Path, parts: Mapping[str, Mapping[str, Documents]], text: Sequence[Path], texts: Documents
) -> Provenance:
    """Return what the taggers will have seen, of which nobody has replaced a word yet."""
    roles: tuple[Role, ...] = ("train", "dev")
    found = []
    for role in roles:
        paths = [str(_part(corpora / name, role)) for name in CORPORA]
        documents = [document for corpus in parts[role].values() for document in corpus]
        if role == "train":
            paths, documents = [*paths, *map(str, text)], [*documents, *texts]
        found.append(describe_part(role, paths, documents))
    return Provenance(parts=found)


def _part(corpus: Path, part: str) -> Path:
    (path,) = corpus.glob(f"{part}.con*")
    return path


def write_with_silver(corpus: Path, part: str, spacy: SpacyLabels, folder: Path) -> None:
    """Write a part of a corpus with gold and silver labels, for `concord calibrate`."""
    documents = read_documents([str(_part(corpus, part))], labels=LABELS)
    predicted = spacy.predict([sentence.words for document in documents for sentence in document.sentences])
    folder.mkdir(parents=True, exist_ok=True)
    write_gold(
        folder / f"{part}.conll",
        [
            replace(
                document, sentences=tuple(add_silver(one, next(predicted), Counter()) for one in document.sentences)
            )
            for document in documents
        ],
        form="conll",
    )


def _with_silver(documents: Documents, predicted: Iterator[list[str]], dropped: Counter[str]) -> list[list[Sentence]]:
    return [[add_silver(sentence, next(predicted), dropped) for sentence in document] for document in documents]


def _numbers(predicted: Iterator[list[str]] | Sequence[list[str]], spacy: SpacyLabels) -> Tensor:
    numbers = {name: number for number, name in enumerate(spacy.names)}
    return torch.tensor([numbers[label] for labels in predicted for label in labels], dtype=torch.uint8)


def _count(corpora: dict[str, list[list[Sentence]]]) -> dict[str, dict[str, int]]:
    """Return how many names of each type each corpus has."""
    return {
        name: dict(
            sorted(
                Counter(span.label for one in flat(documents) for span in decode_spans(one.labels or (), "BIO")).items()
            )
        )
        for name, documents in corpora.items()
    }


def _read(folder: Path, part: str) -> dict[str, Documents]:
    """Return the documents of each corpus, without empty and without very long sentences."""
    found: dict[str, Documents] = {}
    for name in CORPORA:
        documents = [
            [
                Sentence(words=piece.words, labels=piece.labels)
                for sentence in document
                if sentence.words
                for piece in split_long(sentence, _LONGEST, BIOES)
            ]
            for document in read_corpora([str(_part(folder / name, part))], labels=LABELS)
        ]
        found[name] = [document for document in documents if document]
    return found


def with_per_cent(documents: Documents) -> list[list[Sentence]]:
    """Return documents in whose sentences every second "percent" or "%" is "per cent", which few of them have."""
    replaced = cycle([False, True])

    def rewrite(sentence: Sentence) -> Sentence:
        if not any(word in _PER_CENT for word in sentence.words):
            return sentence
        words: list[str] = []
        labels: list[str] = []
        for word, label in zip(sentence.words, sentence.labels or ["O"] * len(sentence.words), strict=True):
            parts = ["per", "cent"] if word in _PER_CENT and label == "O" and next(replaced) else [word]
            words += parts
            labels += [label] * len(parts)
        return Sentence(words=tuple(words), labels=None if sentence.labels is None else tuple(labels))

    return [[rewrite(sentence) for sentence in document] for document in documents]


def _draw(path: Path, words: int) -> list[list[Sentence]]:
    """Return texts of so many words, drawn at random, none of them a very long one, nor one that is checked by hand."""
    checked = {
        (document["source"], document["id"])
        for file in _CHECKED
        for document in json.loads(file.read_text(encoding="utf-8"))["documents"]
    }
    source = path.name.partition(".")[0]
    with pa.input_stream(str(path)) as stream:
        lines = stream.read().decode().splitlines()
    texts = [one["text"] for one in map(json.loads, lines) if (source, one["id"]) not in checked]
    parser = StanzaParser(ParserConfig(trees=False, tags=False))
    found: list[list[Sentence]] = []
    for number, text in enumerate(random.Random(35).sample(texts, len(texts))):
        if words <= 0:
            break
        if len(text) > _LONGEST_TEXT:
            continue
        document = Document(doc_id=str(number), text=text, source_uri=str(path), source_position=number)
        for sentences in split_texts(parser, [document]):
            found.append([Sentence(words=tuple(one)) for one in sentences if 0 < len(one) <= _LONGEST])
            words -= sum(len(one.words) for one in found[-1])
    return found


if __name__ == "__main__":
    main()
