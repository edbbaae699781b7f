"""Measure what mistakes a simulated annotator finds by the review queue, with and without its tenth of disputed names.

Command: python benchmarks/bench_queue.py --corpora ../shared/data/labelled \
    --summary benchmarks/results/queue_cpu_202611.json

A bundled tagger labels documents that it has not been trained on. The annotator looks at a queue of --size sentences
of ``concord review``, every tenth of which is drawn for a disputed name, corrects them as in the gold annotation, and
asks for the next queue, which knows these corrections. After --rounds queues it counts the entities that were wrong or
missed, and among them those of which the tagger was sure: with a probability of 0.9 or more, a missed one for each of
its words. What it finds of types that the corpora lack counts as right. "Before" is the same queue by uncertainty
alone.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from english_types import TYPES, accepted
from environment import environment

from concord.models.bundles.checkpoint import load_tagger
from concord.models.data.outputs import Prediction
from concord.models.data.sentence import Sentence
from concord.models.labels import decode_spans
from concord.pipeline.corrections.correction import Correction, Mark, Seen
from concord.pipeline.exchange.review_queue import DISPUTED_EVERY, Quotas, select_sentences
from concord.pipeline.output.collection import (
    CollectedDocument,
    CollectedSentence,
    DocumentRow,
    EntityRow,
    SentenceRow,
    TokenRow,
)
from concord.workflows.corpora.corpora import read_corpora, without_labels
from concord.workflows.registry.resolve_tagger import find_tagger

POOLS = {
    "conll2003 dev": ["conll2003/dev"],
    "litbank_prop and gum_ne_open, test": ["litbank_prop/test", "gum_ne_open/test"],
}
SURE = 0.9

Span = tuple[int, int, str]


def main() -> None:
    """Let the annotator work through each pool both ways, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--model", default="entities_en_small")
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = find_tagger(arguments.model)
    tagger = load_tagger(found.folder)
    report: dict[str, Any] = {
        **environment("bench_queue.py"),
        "tagger": f"{found.name} {found.digest[:12]}",
        "pools": [],
    }
    for name, parts in POOLS.items():
        paths = [str(next((arguments.corpora / part).parent.glob(f"{Path(part).name}.*"))) for part in parts]
        gold = [document for document in read_corpora(paths, labels=TYPES) if document]
        predictions = tagger.predict_documents(without_labels(gold))
        pool = [
            [(accepted(*pair), pair[1]) for pair in zip(sentences, predicted, strict=True)]
            for sentences, predicted in zip(gold, predictions, strict=True)
        ]
        everything = [mistakes(*pair) for document in pool for pair in document]
        entry: dict[str, Any] = {
            "pool": name,
            "documents": len(pool),
            "sentences": len(everything),
            "mistakes": sum(count for count, _ in everything),
            "sure_mistakes": sum(sure for _, sure in everything),
            "sentences_looked_at": arguments.size * arguments.rounds,
        }
        for when, every in (("before", 10**9), ("after", DISPUTED_EVERY)):
            entry[when] = looked_at(pool, size=arguments.size, rounds=arguments.rounds, every=every)
        report["pools"].append(entry)
        print(json.dumps(entry), flush=True)
        arguments.summary.write_text(json.dumps(report, indent=1) + "\n")


def looked_at(
    pool: Sequence[Sequence[tuple[Sentence, Prediction]]], *, size: int, rounds: int, every: int
) -> dict[str, Any]:
    """Return what the annotator finds in each queue, and in the sentences that were drawn for a disputed name."""
    seen: set[tuple[int, int]] = set()
    log: list[Correction] = []
    by_round: list[dict[str, Any]] = []
    for _ in range(rounds):
        documents = [collected(number, document, seen) for number, document in enumerate(pool)]
        quotas = Quotas(size=size, per_document=None, per_type=None, seed=1)
        queue = select_sentences(documents, quotas, log=log, disputed_every=every)
        places = [(int(one.doc_id), one.sent_id) for one in queue]
        counts = [mistakes(*pool[document][sentence]) for document, sentence in places]
        tenth = [
            count
            for one, count in zip(queue, counts, strict=True)
            if "elsewhere" in one.reason or "people" in one.reason
        ]
        by_round.append(
            {
                "mistakes": sum(count for count, _ in counts),
                "sure_mistakes": sum(sure for _, sure in counts),
                "disputed": {
                    "sentences": len(tenth),
                    "with_a_mistake": sum(count > 0 for count, _ in tenth),
                    "sure_mistakes": sum(sure for _, sure in tenth),
                },
            }
        )
        for document, sentence in places:
            log += corrections(document, *pool[document][sentence])
        seen.update(places)
    return {
        "mistakes": sum(one["mistakes"] for one in by_round),
        "sure_mistakes": sum(one["sure_mistakes"] for one in by_round),
        "rounds": by_round,
    }


def gold_spans(sentence: Sentence) -> set[Span]:
    """Return the gold entities of a sentence."""
    return {(span.start, span.end, span.label) for span in decode_spans(sentence.labels or (), "BIO")}


def found_spans(prediction: Prediction) -> dict[Span, float]:
    """Return the entities that the tagger found, with their probabilities."""
    spans = ((span.start, span.end, span.label) for span in prediction.spans)
    return {span: value or 0.0 for span, value in zip(spans, prediction.confidences, strict=True)}


def mistakes(sentence: Sentence, prediction: Prediction) -> tuple[int, int]:
    """Return how many entities are wrong or missed, and of how many of these the tagger was sure."""
    gold, found = gold_spans(sentence), found_spans(prediction)
    wrong = [value for span, value in found.items() if span not in gold]
    words = [value or 0.0 for value in prediction.probabilities]
    missed = [min(words[start:end]) for start, end, label in gold if (start, end, label) not in found]
    return len(wrong) + len(missed), sum(value >= SURE for value in [*wrong, *missed])


def corrections(number: int, sentence: Sentence, prediction: Prediction) -> Iterator[Correction]:
    """Yield what the annotator says of a sentence: each gold entity is accepted or added, each other one dropped."""
    text, found = " ".join(sentence.words), found_spans(prediction)
    starts = [len(" ".join([*sentence.words[:word], ""])) for word in range(len(sentence.words))]
    seen = Seen(doc_id=str(number), tagger="", generation=0)

    def mark(start: int, end: int, label: str) -> Mark:
        begin, stop = starts[start], starts[end - 1] + len(sentence.words[end - 1])
        return Mark(start=begin, end=stop, type=label, text=text[begin:stop])

    gold = gold_spans(sentence)
    for span in sorted(gold | found.keys()):
        old, new = (mark(*span) if span in spans else None for spans in (found, gold))
        yield Correction.of(old, new, text=text, seen=seen, who="annotator")


def collected(
    number: int, document: Sequence[tuple[Sentence, Prediction]], seen: set[tuple[int, int]]
) -> CollectedDocument:
    """Return a document as the tables have it; what the annotator has seen has gold labels, and is sure."""
    sentences: list[CollectedSentence] = []
    entities: list[EntityRow] = []
    start = 0
    for sent_id, (sentence, prediction) in enumerate(document):
        is_seen = (number, sent_id) in seen
        labels = (sentence.labels or ()) if is_seen else prediction.labels
        sure = [1.0] * len(labels) if is_seen else prediction.probabilities
        offsets: list[tuple[int, int]] = []
        tokens: list[TokenRow] = []
        for word, label, value in zip(sentence.words, labels, sure, strict=True):
            offsets.append((start, start + len(word)))
            empty = (None,) * 6
            tokens.append(TokenRow(len(tokens) + 1, *offsets[-1], word, word, *empty, label, label, value, 0.0, False))
            start += len(word) + 1
        bounds = SentenceRow(sent_id, offsets[0][0], offsets[-1][1], len(tokens), continues=False)
        sentences.append(CollectedSentence(bounds, tuple(tokens)))
        spans = dict.fromkeys(gold_spans(sentence), 1.0) if is_seen else found_spans(prediction)
        for (first, stop, label), value in sorted(spans.items()):
            place = (sent_id, offsets[first][0], offsets[stop - 1][1], first + 1, stop)
            text = " ".join(sentence.words[first:stop])
            entity = EntityRow(len(entities), *place, text, label, value, 0.0, False)
            entities.append(entity._replace(source="corrected") if is_seen else entity)
    row = DocumentRow(str(number), "", 0, "", start, len(sentences), 0, len(entities), "", None)
    return CollectedDocument(row, tuple(sentences), tuple(entities))


if __name__ == "__main__":
    main()
