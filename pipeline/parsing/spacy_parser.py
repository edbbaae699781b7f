"""A spaCy pipeline as the parser: words, sentences, tags and trees are those that it gives to the text of a document.

Its tokens are the words, except those of white space. It reads each document alone, since its arithmetic may depend on
what it reads at once, and a long one in parts, each from the last sentence of the part before. A pipeline without a
component that finds sentences gets spaCy's ``sentencizer``, which splits at punctuation. It computes on the CPU.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from concord.models.adapters.libraries import load_spacy_pipeline
from concord.models.data.outputs import OnBatch
from concord.models.data.sentence import Sentence
from concord.pipeline.config import ParserConfig
from concord.pipeline.identity import ComponentIdentity
from concord.pipeline.parsing.parser import Parser
from concord.pipeline.parsing.tokens import SyntacticWord, Token, WordAnalysis

_PART_CHARACTERS = 50_000
"""A part ends at the first place to cut after so many characters, since memory grows with the length of a text."""
_PLACE_TO_CUT = re.compile(r"\s|(?<=[。．！？｡])")
"""White space, or the end of a sentence in a script without it."""
_SENTENCES = {"doc.sents", "token.is_sent_start"}
_TAGS = {"token.tag", "token.pos", "token.morph", "token.lemma"}
_UNUSED = {"doc.ents", "doc.spans", "doc.cats", "token.ent_kb_id"}


class SpacyParser(Parser):
    """The components of a pipeline that words, sentences, tags and trees depend on.

    Raises:
        ModelError: when the pipeline does not load.
    """

    def __init__(self, config: ParserConfig, folder: Path, *, identity: ComponentIdentity) -> None:
        super().__init__(identity=identity)
        self._tags = config.tags
        self._trees = config.trees
        self._nlp = load_spacy_pipeline(folder)
        self._nlp.max_length = sys.maxsize  # parts bound what is read at once
        assigns = {name: set(self._nlp.get_pipe_meta(name).assigns) for name in self._nlp.pipe_names}
        for name, columns in assigns.items():
            if columns & (_UNUSED if config.tags else _UNUSED | _TAGS):
                self._nlp.disable_pipe(name)
        if not any(_SENTENCES & columns for columns in assigns.values()):
            self._nlp.add_pipe("sentencizer")

    @override
    def _tokenize(self, views: Sequence[str], on_batch: OnBatch | None) -> list[list[list[Token]]]:
        tokenized = []
        # Without a zone its vocabulary would keep every word that it has ever read.
        with self._nlp.memory_zone():
            for view in views:
                tokenized.append(list(self._split(view)))
                if on_batch is not None:
                    on_batch(0, 0)
        return tokenized

    @override
    def _analyse(self, sentences: Sequence[Sentence], on_batch: OnBatch | None) -> list[list[WordAnalysis]]:
        from spacy.tokens import Doc

        del on_batch  # few sentences are not analysed as they are read
        with self._nlp.memory_zone():
            docs = (
                Doc(self._nlp.vocab, words=list(one.words), sent_starts=[place == 0 for place in range(len(one.words))])
                for one in sentences
            )
            return [self._analyses(list(self._nlp(doc))) for doc in docs]

    def _split(self, view: str) -> Iterator[list[Token]]:
        """Yield the sentences of a text."""
        start = 0
        while start < len(view):
            place = _PLACE_TO_CUT.search(view, start + _PART_CHARACTERS)
            end = place.start() if place else len(view)
            found = ([token for token in part if not token.is_space] for part in self._nlp(view[start:end]).sents)
            sentences = [sentence for sentence in found if sentence]
            if end < len(view) and len(sentences) > 1:
                end = start + sentences.pop()[0].idx  # it may go on
            for sentence in sentences:
                words = [
                    SyntacticWord(start + token.idx, start + token.idx + len(token), token.text, analysis)
                    for token, analysis in zip(sentence, self._analyses(sentence), strict=True)
                ]
                yield [Token(word.start, word.end, (word,)) for word in words]
            start = end

    def _analyses(self, sentence: Sequence[Any]) -> list[WordAnalysis]:
        """Return the tags and tree of a sentence, whose white space may be left out."""
        analyses = [WordAnalysis()] * len(sentence)
        if self._tags:
            analyses = [
                WordAnalysis(word.lemma_ or None, word.pos_ or None, word.tag_ or None, str(word.morph) or None)
                for word in sentence
            ]
        if self._trees and sentence[0].doc.has_annotation("DEP"):
            tree = zip(_heads(sentence), (token.dep_ for token in sentence), strict=True)
            # Only roots are renamed, to what Universal Dependencies calls them.
            relations = [(head, "root" if head == 0 else "dep" if name == "ROOT" else name) for head, name in tree]
            analyses = [
                analysis._replace(head=head, deprel=relation or None)
                for analysis, (head, relation) in zip(analyses, relations, strict=True)
            ]
        return analyses


def _heads(sentence: Sequence[Any]) -> list[int]:
    """Return 1-based heads; white space is skipped, and all roots but the first depend on the first."""
    places = {token.i: place for place, token in enumerate(sentence, start=1)}
    heads = []
    for token in sentence:
        head = token.head
        while head.i not in places and head.head.i != head.i:
            head = head.head
        heads.append(0 if head.i == token.i else places.get(head.i, 0))
    root = heads.index(0)
    return [root + 1 if head == 0 and place != root else head for place, head in enumerate(heads)]
