"""Stanza's own processors, called one after the other: the plain way from text to words and trees."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from concord.pipeline.parsing.tokens import Token, make_token

# Characters of a word that tagger and parser get to see: the longest word of a batch decides the tagger's memory.
SHOWN = 300


class WordAnalysis(NamedTuple):
    """What tagger, lemmatizer and parser say of a word; ``head`` is 1-based, 0 for a root."""

    upos: str | None
    xpos: str | None
    feats: str | None
    lemma: str | None
    head: int
    deprel: str


class PlainStanza:
    """Stanza's own processors, one after the other."""

    def __init__(self, nlp: Any) -> None:
        self._nlp = nlp

    def tokenize(self, views: Sequence[str]) -> list[list[list[Token]]]:
        """Give each text's sentences as tokens."""
        return [self._tokenize(view) if view.strip() else [] for view in views]

    def _tokenize(self, view: str) -> list[list[Token]]:
        document = self._nlp.processors["tokenize"].process(view)
        if "mwt" in self._nlp.processors:
            document = self._nlp.processors["mwt"].process(document)
        return [
            [
                make_token(view, token.start_char, token.end_char, [word.text for word in token.words])
                for token in sentence.tokens
            ]
            for sentence in document.sentences
        ]

    def analyse(self, sentences: Sequence[Sequence[str]]) -> list[list[WordAnalysis]]:
        """Tag, lemmatize and parse sentences, given as words."""
        if not sentences:
            return []
        document = stanza_document([[{"text": form[:SHOWN]} for form in sentence] for sentence in sentences])
        for name in ("pos", "lemma", "depparse"):
            document = self._nlp.processors[name].process(document)
        return [
            [
                WordAnalysis(word.upos, word.xpos, word.feats, shown_lemma(word.lemma, form), word.head, word.deprel)
                for word, form in zip(analysed.words, sentence, strict=True)
            ]
            for analysed, sentence in zip(document.sentences, sentences, strict=True)
        ]


def shown_lemma(lemma: str | None, form: str) -> str | None:
    """Give the lemma of a whole form where Stanza was shown only its beginning."""
    if len(form) > SHOWN and lemma == form[:SHOWN]:
        return form
    return None if lemma == "_" and form != "_" else lemma


def stanza_document(sentences: Sequence[Sequence[dict[str, Any]]]) -> Any:
    """Give sentences, whose words are mappings of fields, as a Stanza document."""
    from stanza.models.common.doc import Document as StanzaDocument

    return StanzaDocument(
        [[{"id": (place,), **word} for place, word in enumerate(sentence, start=1)] for sentence in sentences]
    )
