"""Score taggers on the UNER corpora, by language: on gold words, and from raw text with the parser that they want.

Command: python benchmarks/bench_languages.py --corpora ../shared/data/labelled \
    --summary benchmarks/results/languages_cpu_202611.json

The labels are PER, LOC and ORG; what a tagger finds of other types is left out. A text is that of a document, its
sentences joined by a space; the corpus of Danish has no documents, so five of its sentences are one.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from environment import environment

from concord.models.bundles.checkpoint import load_tagger
from concord.models.data.outputs import Prediction
from concord.models.data.sentence import Sentence
from concord.models.evaluation.metrics import expected_calibration_error
from concord.models.labels import decode_spans
from concord.models.taggers.base import Tagger
from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.parsing.resolve_parser import load_parser, parser_for
from concord.workflows.corpora import read_documents
from research.parser_en import raw_text

LANGUAGES = ("pt", "hr", "sr", "da", "sk", "sv")
TYPES = ("PER", "LOC", "ORG")
_SENTENCES = 5
"""Sentences that are one text where a corpus has no documents."""

Place = tuple[int, int, str]


class Text(NamedTuple):
    """A document as it is written, with the places of its words, sentences and names in code points."""

    text: str
    words: list[tuple[int, int]]
    sentences: list[tuple[int, int]]
    names: list[Place]
    gold: list[Sentence]


def read_texts(path: Path) -> Iterator[Text]:
    """Read the documents of a corpus whose words say whether a space follows."""
    tokens = iter([sentence for paragraph in raw_text.read_paragraphs(path) for sentence in paragraph])
    documents = [list(document.sentences) for document in read_documents([str(path)], labels={})]
    if max(map(len, documents)) == 1:
        every = [sentence for document in documents for sentence in document]
        documents = [every[start : start + _SENTENCES] for start in range(0, len(every), _SENTENCES)]
    for document in documents:
        found = Text("", [], [], [], document)
        pieces: list[str] = []
        place = 0
        for sentence in document:
            first = len(found.words)
            for token in next(tokens):
                found.words.append((place, place + len(token.text)))
                pieces.append(token.text + " " * token.space_after)
                place += len(pieces[-1])
            if not pieces[-1].endswith(" "):
                pieces.append(" ")
                place += 1
            words = found.words[first:]
            found.sentences.append((words[0][0], words[-1][1]))
            for span in decode_spans(sentence.labels or (), "BIO"):
                found.names.append((words[span.start][0], words[span.end - 1][1], span.label))
        yield found._replace(text="".join(pieces))


class Score:
    """Precision, recall and F1 of places, counted over documents."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, gold: Iterable[tuple[int, ...] | Place], found: Iterable[tuple[int, ...] | Place]) -> None:
        """Count the places of a document, by type where they have one."""
        wanted, given = set(gold), set(found)
        for name, places in (("gold", wanted), ("found", given), ("right", wanted & given)):
            for place in places:
                kind = place[2] if len(place) > 2 else "all"
                self._counts[name, str(kind)] += 1
                if kind != "all":
                    self._counts[name, "all"] += 1

    def f1(self) -> dict[str, float]:
        """Return F1 in percent, of all and of each type."""
        kinds = sorted({kind for _, kind in self._counts})
        return {
            kind: round(
                200 * self._counts["right", kind] / max(1, self._counts["gold", kind] + self._counts["found", kind]), 1
            )
            for kind in kinds
        }


def score(tagger: Tagger, texts: Sequence[Text]) -> dict[str, object]:
    """Return the scores of a tagger on gold words and from raw text, and those of its parser."""
    gold, raw, words, sentences = Score(), Score(), Score(), Score()
    documents = [[Sentence(words=sentence.words) for sentence in one.gold] for one in texts]
    sure: list[tuple[float, bool]] = []
    for text, predictions in zip(texts, tagger.predict_documents(documents), strict=True):
        gold.add(text.names, _names([p.labels for p in predictions], text.words, text.gold))
        sure += _confidences(predictions, text)
    parser = load_parser(parser_for(tagger.parser, ParserConfig()).model_copy(update={"trees": False, "tags": False}))
    parsed = parser.parse(
        [Document(doc_id=str(n), text=one.text, source_uri="", source_position=n) for n, one in enumerate(texts)]
    )
    for text, outcome in zip(texts, parsed, strict=True):
        if isinstance(outcome, DeadLetter):
            raise SystemExit(outcome.message)
        read = [Sentence(words=tuple(word.word for word in one.words)) for one in outcome.sentences]
        places = [(word.start_char, word.end_char) for one in outcome.sentences for word in one.words]
        bounds = [(one.words[0].start_char, one.words[-1].end_char) for one in outcome.sentences]
        words.add(text.words, places)
        sentences.add(text.sentences, bounds)
        [predictions] = tagger.predict_documents([read])
        raw.add(text.names, _names([p.labels for p in predictions], places, read))
    return {
        "gold_words": gold.f1(),
        "raw_text": raw.f1(),
        "words": words.f1()["all"],
        "sentences": sentences.f1()["all"],
        "confidence": round(100 * sum(confidence for confidence, _ in sure) / max(1, len(sure)), 1),
        "precision": round(100 * sum(right for _, right in sure) / max(1, len(sure)), 1),
        "calibration_error": round(100 * expected_calibration_error(*map(np.array, zip(*sure, strict=True))), 1),
    }


def _confidences(predictions: Sequence[Prediction], text: Text) -> Iterator[tuple[float, bool]]:
    """Yield the confidence of each name on gold words, and whether it is right."""
    names, first = set(text.names), 0
    for prediction in predictions:
        for span, confidence, _ in prediction.entities:
            if span.label in TYPES and confidence is not None:
                place = text.words[first + span.start][0], text.words[first + span.end - 1][1], span.label
                yield confidence, place in names
        first += len(prediction.labels)


def _names(
    labels: Sequence[Sequence[str]], places: Sequence[tuple[int, int]], sentences: Sequence[Sentence]
) -> Iterator[Place]:
    first = 0
    for row, sentence in zip(labels, sentences, strict=True):
        for span in decode_spans(row, "BIO"):
            if span.label in TYPES:
                yield places[first + span.start][0], places[first + span.end - 1][1], span.label
        first += len(sentence.words)


def main() -> None:
    """Score every tagger on every language and write one JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=["entities_multi"])
    parser.add_argument("--languages", nargs="+", default=LANGUAGES)
    parser.add_argument("--part", default="test")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, object] = {**environment("bench_languages.py"), "part": arguments.part}
    scores: dict[str, dict[str, object]] = {}
    for name in arguments.models:
        tagger = load_tagger(Path("models/pretrained") / name)
        scores[name] = {
            language: score(
                tagger, list(read_texts(next((arguments.corpora / f"uner_{language}").glob(f"{arguments.part}.*"))))
            )
            for language in arguments.languages
        }
        print(json.dumps({name: scores[name]}), flush=True)
    arguments.summary.write_text(json.dumps({**report, "scores": scores}, indent=1) + "\n")


if __name__ == "__main__":
    main()
