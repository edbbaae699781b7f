"""Run a Stanza pipeline through Stanza's own processors: the reference for ``stanza_fast``, and the fallback."""

from collections.abc import Sequence
from typing import Any

from concord.models.data.outputs import OnBatch
from concord.pipeline.parsing.tokens import Token, WordAnalysis, make_token

MAX_WORD_LENGTH = 300
"""Longer words are truncated for tagger and parser, since the longest word of a batch decides the tagger's memory."""


class PlainStanza:
    """Stanza's own processors, called one after the other."""

    def __init__(self, nlp: Any) -> None:
        self._nlp = nlp

    def tokenize(self, views: Sequence[str], *, on_batch: OnBatch | None = None) -> list[list[list[Token]]]:
        """Split each text into sentences of tokens; ``on_batch`` as for ``Parser.parse``."""
        tokenized = []
        for view in views:
            tokenized.append(self._tokenize(view) if view.strip() else [])
            if on_batch is not None:
                on_batch(0, 0)
        return tokenized

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

    def analyse(
        self, sentences: Sequence[Sequence[str]], *, on_batch: OnBatch | None = None
    ) -> list[list[WordAnalysis]]:
        """Tag, lemmatize and parse sentences given as words, as far as the pipeline does.

        Here it is one batch, so ``on_batch`` is not called.
        """
        del on_batch
        if not sentences or "pos" not in self._nlp.processors:
            return [[WordAnalysis()] * len(sentence) for sentence in sentences]
        document = stanza_document([[{"text": truncate(form)} for form in sentence] for sentence in sentences])
        for name in ("pos", "lemma", "depparse"):
            if name in self._nlp.processors:
                document = self._nlp.processors[name].process(document)
        return [
            [
                WordAnalysis(restore_lemma(word.lemma, form), word.upos, word.xpos, word.feats, word.head, word.deprel)
                for word, form in zip(analysed.words, sentence, strict=True)
            ]
            for analysed, sentence in zip(document.sentences, sentences, strict=True)
        ]


def truncate(form: str) -> str:
    """Return the part of a word that Stanza sees."""
    return form[:MAX_WORD_LENGTH]


def restore_lemma(lemma: str | None, form: str) -> str | None:
    """Return the lemma of a word that Stanza may have seen truncated."""
    if len(form) > MAX_WORD_LENGTH and lemma == truncate(form):
        return form
    return None if lemma == "_" and form != "_" else lemma


def stanza_document(sentences: Sequence[Sequence[dict[str, Any]]]) -> Any:
    """Build a Stanza document from sentences whose words are mappings of fields."""
    from stanza.models.common.doc import Document as StanzaDocument

    return StanzaDocument(
        [[{"id": (place,), **word} for place, word in enumerate(sentence, start=1)] for sentence in sentences]
    )
