"""Measure what a document memory adds: the same weights with its slots and without, beside an oracle.

Command: python benchmarks/bench_document_memory.py --corpora MENDED --models entities_multi --summary SUMMARY

Strict F1 in percent, of drafts and final labels. In the oracle a name that is
right once in its document is right everywhere in it. Co-Acc is the accuracy of words of names that occur again in their
document. Unlabelled are occurrences of names of two and more words that their document labels elsewhere.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from english_types import TYPES, scored
from environment import environment

from concord.models.bundles.checkpoint import load_tagger
from concord.models.data.sentence import Sentence
from concord.models.evaluation.metrics import count_unlabelled, gold_sequences, name_labels, span_scores
from concord.models.labels import Span, decode_spans
from concord.models.taggers.two_stage import TwoStageTagger
from concord.pipeline.names.values import VALUES
from concord.workflows.corpora import read_corpora
from concord.workflows.registry import find_tagger
from research.breakdown import co_occurrence_scores

SETS = ("ewt_uner", "gum_ne_open", "wikigold", "litbank_prop", "btc")
REPEATED = ("repeated names", "unlabelled")
Labels = list[tuple[str, ...]]
Documents = Sequence[Sequence[Sentence]]


def load_two_stages(model: str) -> tuple[TwoStageTagger, str]:
    """Return a tagger of two stages, and the digest of its bundle."""
    resolved = find_tagger(model)
    tagger = load_tagger(resolved.folder)
    if not isinstance(tagger, TwoStageTagger):
        raise SystemExit(f"{model}: expected a tagger of two stages, got {tagger.name}")
    return tagger, resolved.digest


def predict(tagger: TwoStageTagger, documents: Documents) -> tuple[Labels, Labels]:
    """Return the final labels of all sentences, and the drafts."""
    found = [one for document in tagger.predict_documents(documents) for one in document]
    return scored([one.labels for one in found]), scored([one.draft_labels for one in found])


def names(document: Sequence[Sentence], labels: Sequence[Sequence[str]]) -> list[tuple[int, Span, str]]:
    """Return the names of a document: the sentence, the span and the lower-cased text of each."""
    return [
        (number, span, " ".join(sentence.words[span.start : span.end]).lower())
        for number, (sentence, own) in enumerate(zip(document, labels, strict=True))
        for span in decode_spans(own, "BIO")
    ]


def oracle(documents: Documents, gold: Labels, final: Labels) -> float:
    """Return F1 once each name that is right somewhere in its document is right everywhere in it."""
    right = predicted = wanted = first = 0
    for document in documents:
        part = slice(first, first + len(document))
        first += len(document)
        named, found = names(document, gold[part]), {one[:2]: one for one in names(document, final[part])}
        known = {(text, span.label) for number, span, text in named if (number, span) in found}
        missed = {one[:2] for one in named if (one[2], one[1].label) in known}
        # A mended name takes the place of what overlaps it.
        kept = [
            (number, span)
            for number, span in found
            if (number, span) in missed
            or not any(n == number and s.start < span.end and span.start < s.end for n, s in missed)
        ]
        after = {*kept, *missed}
        right += len(after & {one[:2] for one in named})
        predicted += len(after)
        wanted += len(named)
    return 200 * right / max(1, predicted + wanted)


def unlabelled_names(documents: Documents, labels: Labels, suffix: str) -> dict[str, float | int]:
    """Return how many repeated names documents have, and how many occurrences of them are without a label."""
    rest, counts = iter(labels), [0, 0]
    for document in documents:
        found = name_labels((sentence.words, next(rest)) for sentence in document)
        counts = [a + b for a, b in zip(counts, count_unlabelled(found, values=VALUES), strict=True)]
    return dict(zip((name + suffix for name in REPEATED), counts, strict=True))


def total_unlabelled(scores: Mapping[str, Mapping[str, float | int]]) -> dict[str, float]:
    """Return the repeated names of all parts, and the share of them that have no label."""
    found: dict[str, float] = {}
    for suffix in ("", " of drafts", " of gold"):
        repeated, unlabelled = (sum(part[name + suffix] for part in scores.values()) for name in REPEATED)
        found |= {f"repeated names{suffix}": repeated, f"unlabelled share{suffix}": unlabelled / max(1, repeated)}
    return found


def measure(tagger: TwoStageTagger, documents: Documents) -> dict[str, float | int]:
    """Measure a tagger on gold documents."""
    gold = [tuple(labels) for labels in gold_sequences(documents)]

    def f1(labels: Labels) -> float:
        return span_scores(gold, labels)["all"].f1

    final, drafts = predict(tagger, documents)
    config = tagger.config
    if config.document_memory is not None:
        emptied = config.document_memory.model_copy(update={"slots": 0})
        tagger.config = config.model_copy(update={"memory": emptied})
    alone, _ = predict(tagger, documents)
    tagger.config = config
    return {
        "names": sum(len(decode_spans(labels, "BIO")) for labels in gold),
        "drafts": f1(drafts),
        "final": f1(final),
        "without slots": f1(alone),
        "memory's own gain": f1(final) - f1(alone),
        "oracle": oracle(documents, gold, final),
        **unlabelled_names(documents, final, ""),
        **unlabelled_names(documents, drafts, " of drafts"),
        **unlabelled_names(documents, gold, " of gold"),
        "co_acc": co_occurrence_scores(documents, final).accuracy,
        "co_acc of drafts": co_occurrence_scores(documents, drafts).accuracy,
        "co_acc without slots": co_occurrence_scores(documents, alone).accuracy,
    }


def main() -> None:
    """Measure each tagger on each part, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=["entities_multi"])
    parser.add_argument("--parts", nargs="+", default=["dev"])
    parser.add_argument("--summary", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for model in arguments.models:
        tagger, digest = load_two_stages(model)
        scores = {}
        for part in arguments.parts:
            for name in SETS:
                documents = read_corpora([str(next((arguments.corpora / name).glob(f"{part}.*")))], labels=TYPES)
                tagger.keep_features(documents)
                scores[f"{name} {part}"] = measure(tagger, documents)
        found[model] = {"digest": digest, "all parts": total_unlabelled(scores), "scores": scores}
    text = json.dumps({**environment("bench_document_memory.py"), "taggers": found}, indent=1) + "\n"
    if arguments.summary:
        arguments.summary.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
