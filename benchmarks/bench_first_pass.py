"""Measure the first pass of a tagger: how many words it leaves to both stages, the time that saves, and what changes.

Command: python benchmarks/bench_first_pass.py --annotated out/presidents out/factbook --words 50000

Documents are taken from annotated collections at even distances until they have --words words. Every repeat tags them
with the tagger's own gate and with a gate of 0, by which both stages read every sentence, in turns; speed is by
processor time, and the ratio that of each pair.
"""

import argparse
import json
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import torch
from bench_tagging import choose_documents, count_words
from environment import environment, quartiles

from concord.models.checkpoint import load_tagger
from concord.models.data.sentence import Sentence
from concord.models.evaluation.consistency import Consistency, consistency, name_labels
from concord.models.evaluation.metrics import span_scores
from concord.models.options import PredictOptions
from concord.models.tagger import Tagger
from concord.models.token_table import TokenTable
from concord.workflows.registry.resolve_tagger import find_tagger

Documents = Sequence[Sequence[Sentence]]


def timed(tagger: Tagger, documents: Documents, *, gate: float | None) -> tuple[float, TokenTable]:
    """Tag once; return seconds of processor time, conversion to text included, and the table."""
    started = time.process_time()
    table = tagger.tabulate(documents, PredictOptions(gate=gate))
    table.predictions(tagger.vocabulary)
    return time.process_time() - started, table


def measure(tagger: Tagger, documents: Documents, *, repeats: int) -> dict[str, object]:
    """Return the speeds with and without the first pass, and how the labels differ."""
    timed(tagger, documents[:1], gate=None)
    own: list[tuple[float, TokenTable]] = []
    full: list[tuple[float, TokenTable]] = []
    for repeat in range(repeats):
        runs = [(own, None), (full, 0.0)]
        for seconds, gate in runs if repeat % 2 else runs[::-1]:
            seconds.append(timed(tagger, documents, gate=gate))
    words = count_words(documents)
    return {
        "documents": len(documents),
        "words": words,
        "words_per_second": quartiles([words / seconds for seconds, _ in own], digits=0),
        "words_per_second_without_first_pass": quartiles([words / seconds for seconds, _ in full], digits=0),
        "ratio": quartiles([slow / fast for (fast, _), (slow, _) in zip(own, full, strict=True)], digits=2),
        **compare(tagger, documents, own[0][1], full[0][1]),
    }


def compare(tagger: Tagger, documents: Documents, own: TokenTable, full: TokenTable) -> dict[str, object]:
    """Return how much both stages read, how the labels agree, and how those of recurring names do."""
    lengths = [len(sentence.words) for document in documents for sentence in document if sentence.words]
    passed = [bool(part[0]) for part in own.first.split(lengths)]
    labels = [
        [[prediction.labels for prediction in document] for document in table.predictions(tagger.vocabulary)]
        for table in (own, full)
    ]
    names = [
        sum(
            (
                consistency(
                    name_labels((sentence.words, found) for sentence, found in zip(document, predicted, strict=True))
                )
                for document, predicted in zip(documents, each, strict=True)
            ),
            Consistency(),
        )
        for each in labels
    ]
    agreement = span_scores(*(list(chain.from_iterable(each)) for each in reversed(labels)))["all"]
    return {
        "encoded_share_of_words": round(1 - float(own.first.float().mean()), 4),
        "encoded_share_of_sentences": round(1 - sum(passed) / len(passed), 4),
        "same_label_share_of_words": round(float((own.label == full.label).float().mean()), 5),
        "f1_against_labels_without_first_pass": round(agreement.f1, 2),
        "mentions_of_recurring_names": [found.occurrences for found in names],
        "agreeing_share_with_and_without": [round(found.share or 0.0, 4) for found in names],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="entities_en")
    parser.add_argument("--annotated", type=Path, nargs="+", required=True, help="annotated collections")
    parser.add_argument("--words", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = find_tagger(arguments.model)
    tagger = load_tagger(found.folder)
    result = environment("bench_first_pass.py") | {
        "model": found.identity.model_dump(),
        "gate": getattr(tagger, "gate", None),
        "collections": {
            path.name: measure(tagger, choose_documents(path, words=arguments.words), repeats=arguments.repeats)
            for path in arguments.annotated
        },
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
