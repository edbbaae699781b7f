"""What the trainings read, in one file: any machine with torch can train from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from concord.models.data.sentence import Sentence
from research.entities_en.learning import Documents

NAME = "prepared.pt"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """Corpora and texts, with what spaCy's pipeline predicts.

    Attributes:
        train: documents of each corpus, with gold and silver labels.
        dev: the same of the dev parts.
        texts: open texts, without labels.
        seen: by part (``train``, ``dev``, ``texts``), the number of spaCy's label of each word, shape ``(N,)``, uint8.
        labels: how many there are.
    """

    train: Mapping[str, Documents]
    dev: Mapping[str, Documents]
    texts: Documents
    seen: Mapping[str, Tensor]
    labels: int

    def sentences(self, part: str) -> list[Sentence]:
        """Return the sentences of a part, in the order of its rows."""
        return flat(self.documents(part))

    def documents(self, part: str) -> list[Sequence[Sentence]]:
        """Return the documents of a part, in the order of its rows."""
        if part == "texts":
            return list(self.texts)
        return [document for documents in getattr(self, part).values() for document in documents]

    def save(self, folder: Path) -> None:
        """Write the file."""
        content = {
            "train": {name: _plain(documents) for name, documents in self.train.items()},
            "dev": {name: _plain(documents) for name, documents in self.dev.items()},
            "texts": _plain(self.texts),
            "seen": dict(self.seen),
            "labels": self.labels,
        }
        torch.save(content, folder / NAME)

    @classmethod
    def read(cls, folder: Path) -> "Prepared":
        """Read the file."""
        content = torch.load(folder / NAME, weights_only=True)
        return cls(
            train={name: _documents(plain) for name, plain in content["train"].items()},
            dev={name: _documents(plain) for name, plain in content["dev"].items()},
            texts=_documents(content["texts"]),
            seen=content["seen"],
            labels=content["labels"],
        )


def flat(documents: Documents) -> list[Sentence]:
    """Return the sentences of documents."""
    return [sentence for document in documents for sentence in document]


Plain = Sequence[Sequence[tuple[str, str]]]
"""For each sentence its words and its labels, each joined by line feeds; no labels are empty."""


def _plain(documents: Documents) -> list[list[tuple[str, str]]]:
    return [[("\n".join(one.words), "\n".join(one.labels or ())) for one in document] for document in documents]


def _documents(plain: Plain) -> list[list[Sentence]]:
    return [
        [
            Sentence(words=tuple(words.split("\n")), labels=tuple(labels.split("\n")) if labels else None)
            for words, labels in document
        ]
        for document in plain
    ]
