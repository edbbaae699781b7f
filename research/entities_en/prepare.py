"""Read corpora and open texts, and what spaCy's pipeline predicts in them, into the file that the trainings read."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click
import torch
from torch import Tensor

from concord.models.data.sentence import Sentence
from concord.models.labels.schemes import BIOES
from concord.models.labels.spans import decode_spans
from concord.models.training.batches import split_long
from concord.pipeline.corpora.soft_corpus import read_soft_corpus
from concord.pipeline.corpora.write_corpus import write_gold
from concord.workflows.corpora.corpora import read_corpora, read_documents
from research.entities_en.guideline import CORPORA, LABELS
from research.entities_en.learning import Documents
from research.entities_en.prepared import Prepared, flat
from research.entities_en.silver import add_silver
from research.entities_en.spacy_labels import SpacyLabels

_LONGEST = 256
_LONGEST_DOCUMENT = 60_000


@click.command(help=__doc__)
@click.argument("work", type=click.Path(path_type=Path, file_okay=False))
@click.option("--corpora", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
@click.option("--sentences", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
@click.option("--words", default=1_700_000, show_default=True, help="Words of open texts.")
def main(work: Path, corpora: Path, sentences: Path, words: int) -> None:
    """Write WORK/prepared.pt, and corpora in WORK/corpora; only the sentences of the soft corpus are read."""
    work.mkdir(parents=True, exist_ok=True)
    spacy = SpacyLabels()
    parts = {part: _read(corpora, part) for part in ("train", "dev")}
    texts = _draw(read_soft_corpus(sentences), words)
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


def write_with_silver(corpus: Path, part: str, spacy: SpacyLabels, folder: Path) -> None:
    """Write a part of a corpus with gold and silver labels, for `concord cascade` and `concord calibrate`."""
    (path,) = corpus.glob(f"{part}.con*")
    documents = read_documents([str(path)], labels=LABELS)
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
        (path,) = (folder / name).glob(f"{part}.con*")
        documents = [
            [
                Sentence(words=piece.words, labels=piece.labels)
                for sentence in document
                if sentence.words
                for piece in split_long(sentence, _LONGEST, BIOES)
            ]
            for document in read_corpora([str(path)], labels=LABELS)
        ]
        found[name] = [document for document in documents if document]
    return found


def _draw(texts: Sequence[Sequence[Sentence]], words: int) -> list[list[Sentence]]:
    """Return texts of so many words, none of them a very long one."""
    found: list[list[Sentence]] = []
    for text in random.Random(35).sample(texts, len(texts)):
        kept = [Sentence(words=one.words) for one in text if 0 < len(one.words) <= _LONGEST]
        size = sum(len(sentence.words) for sentence in kept)
        if size <= _LONGEST_DOCUMENT and words > 0:
            found.append(kept)
            words -= size
    return found


if __name__ == "__main__":
    main()
