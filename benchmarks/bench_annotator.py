"""Measure what a tagger learns from the corrections of a simulated annotator, by what the annotator looks at.

Command: python benchmarks/bench_annotator.py --corpora ../shared/data/labelled --folder out/annotator \
    --summary benchmarks/results/annotator_cpu_202611.json --picture docs/annotator.png

A BiLSTM-CRF, trained on a half of EWT (web texts), annotates the train part of LitBank (novels). The annotator looks
at sentences until they have --words words, and corrects them as in the gold annotation: the sentences that the tagger
is least sure of, by the score of ``concord review``; documents drawn at random; or the longest documents, each sentence
after the other. In a sentence of the queue without an entity, found or gold, there is nothing to correct or to accept:
it leaves no line in the log, so that nobody knows that it was looked at. Documents are learned with --whole-documents.
The tagger then learns as by conf/train/corrected.yaml: for three epochs at 0.3 times its learning rate, beside four
words of EWT for each that was looked at, and at least 10,000; F1 is that of LitBank's test part, and of EWT's dev
part, which shows what is forgotten. Each is trained with several seeds, which also draw the random documents; a
training that is in --folder already is used again.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from environment import environment, spread

from concord.models.bundles.checkpoint import load_tagger
from concord.models.data.outputs import Prediction, known_numbers
from concord.models.data.sentence import Sentence
from concord.models.labels import decode_spans
from concord.models.training.fit import FitConfig
from concord.pipeline.corpora.gold_corpus import GoldDocument, write_gold
from concord.workflows.corpora import Documents, read_corpora, without_labels
from concord.workflows.training import train
from concord.workflows.training.job import TrainJob, read_train_job
from concord.workflows.training.train import RESULT_NAME
from research.entities_en.guideline import LABELS

mpl.use("agg")
import matplotlib.pyplot as plt

CHOICES = {"queue": "uncertainty queue", "random": "random documents", "longest": "longest documents"}
COLOURS = {"queue": "#0072b2", "random": "#d55e00", "longest": "#009e73"}
MARKERS = {"queue": "o", "random": "s", "longest": "^"}

REHEARSED, LEAST_REHEARSED = 4, 10_000
"""Words of EWT that an epoch reads: for each word that was looked at, and at least."""

Place = tuple[int, int]
"""Number of a document, and of a sentence in it."""


def main() -> None:
    """Train the tagger, let it learn from each choice, and write JSON and picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--picture", type=Path, required=True)
    parser.add_argument("--words", type=int, nargs="+", default=[2000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    job = champion_job(arguments.corpora)
    before = trained(job, arguments.folder / "champion")
    bundle = arguments.folder / "champion/bundle"
    pool = read_corpora([find(arguments.corpora, "litbank_prop", "train")], labels=job.data.labels)
    tagger = load_tagger(bundle, device="cpu")
    predictions = tagger.predict_documents(without_labels(pool))
    report: dict[str, Any] = {
        **environment("bench_annotator.py"),
        "pool": {"documents": len(pool), "words": sum(len(one.words) for document in pool for one in document)},
        "before": before,
        "runs": [],
    }
    for words in arguments.words:
        for choice in CHOICES:
            found = []
            for seed in arguments.seeds:
                places = chosen(choice, pool, predictions, words=words, seed=seed)
                folder = arguments.folder / f"{choice}-{words}-{seed}"
                corrected = looked_at(pool, predictions, places, choice)
                found.append(learn(job, bundle, folder, corrected, seed=seed))
            shown = [pool[document][sentence] for document, sentence in places]
            entry = {
                "choice": CHOICES[choice],
                "words_looked_at": sum(len(one.words) for one in shown),
                "sentences": len(shown),
                "entities": sum(len(decode_spans(one.labels or (), "BIO")) for one in shown),
                **{name: spread([score[name] for score in found], digits=2) for name in found[0]},
            }
            report["runs"].append(entry)
            print(json.dumps(entry), flush=True)
            arguments.summary.write_text(json.dumps(report, indent=1) + "\n")
    draw(report, arguments.picture)


def find(corpora: Path, name: str, part: str) -> str:
    """Return the path of a part of a corpus."""
    return str(next((corpora / name).glob(f"{part}.*")).resolve())


def champion_job(corpora: Path) -> TrainJob:
    """Return the training of the tagger that annotates the pool."""
    return read_train_job(
        Path("conf/train/bilstm_crf.yaml"),
        overrides=[
            f"data.train=[{{path: {find(corpora, 'ewt_uner', 'train')}, weight: 0.5}}]",
            f"data.dev={find(corpora, 'ewt_uner', 'dev')}",
            f"data.test={find(corpora, 'litbank_prop', 'test')}",
            f"data.labels={json.dumps(LABELS)}",
            "fit.epochs=5",
        ],
    )


def chosen(
    choice: str, pool: Documents, predictions: Sequence[Sequence[Prediction]], *, words: int, seed: int
) -> list[Place]:
    """Return the sentences that the annotator looks at, until they have so many words."""
    places = []
    for document, sentence in ordered(choice, pool, predictions, seed=seed):
        if words <= 0:
            break
        places.append((document, sentence))
        words -= len(pool[document][sentence].words)
    return places


def ordered(choice: str, pool: Documents, predictions: Sequence[Sequence[Prediction]], *, seed: int) -> Iterator[Place]:
    """Yield all sentences of the pool in the order in which the annotator would look at them."""
    if choice == "queue":
        places = [(document, number) for document, found in enumerate(predictions) for number in range(len(found))]
        yield from sorted(places, key=lambda place: -doubt(predictions[place[0]][place[1]]))
        return
    order = list(range(len(pool)))
    if choice == "random":
        random.Random(seed).shuffle(order)
    else:
        order.sort(key=lambda number: -sum(len(sentence.words) for sentence in pool[number]))
    for document in order:
        yield from ((document, number) for number in range(len(pool[document])))


def doubt(prediction: Prediction) -> float:
    """Return the score of a sentence in a review queue: that of its least confident decision."""
    inside = {word for span in prediction.spans for word in range(span.start, span.end)}
    words = [1 - value for word, value in enumerate(known_numbers(prediction.probabilities)) if word not in inside]
    return max([*words, *(1 - value for value in known_numbers(prediction.confidences))], default=0.0)


def looked_at(
    pool: Documents, predictions: Sequence[Sequence[Prediction]], places: Sequence[Place], choice: str
) -> list[GoldDocument]:
    """Return the documents with a corrected sentence, in which only what the log says is known."""
    shown = set(places)

    def known(document: int, number: int) -> bool:
        leaves_a_line = choice != "queue" or bool(
            decode_spans(pool[document][number].labels or (), "BIO") or predictions[document][number].spans
        )
        return leaves_a_line and (document, number) in shown

    return [
        GoldDocument(
            name=f"pool-{document}",
            sentences=tuple(
                sentence if known(document, number) else masked(sentence)
                for number, sentence in enumerate(pool[document])
            ),
            lines=(0,) * len(pool[document]),
        )
        for document in sorted({document for document, _ in places})
    ]


def masked(sentence: Sentence) -> Sentence:
    """Return a sentence of which no label is known."""
    return replace(sentence, labels=("O",) * len(sentence.words), known=(False,) * len(sentence.words))


def learn(
    earlier: TrainJob, bundle: Path, folder: Path, documents: Sequence[GoldDocument], *, seed: int
) -> dict[str, float]:
    """Train the tagger further on corrected documents and on those of its own training, and return its scores."""
    words = sum(len(one.words) for document in documents for one in document.sentences if one.known is None)
    [rehearsed] = earlier.data.train
    read = read_corpora([rehearsed.path], labels=earlier.data.labels)
    size = rehearsed.weight * sum(len(one.words) for document in read for one in document)
    share = min(1.0, max(REHEARSED * words, LEAST_REHEARSED) / size)
    folder.mkdir(parents=True, exist_ok=True)
    corpus = (folder / "corrected.conllu").absolute()
    write_gold(corpus, documents, form="conllu")
    fit = FitConfig.from_mapping(earlier.fit, where="fit")
    optimizers = {
        name: one.model_copy(update={"learning_rate": 0.3 * one.learning_rate}) for name, one in fit.optimizers.items()
    }
    fit = fit.model_copy(update={"epochs": 3, "seed": seed, "optimizers": optimizers})
    train_corpora = [rehearsed.model_copy(update={"weight": rehearsed.weight * share}), str(corpus)]
    job = earlier.model_copy(
        update={
            "start": str(bundle.absolute()),
            "data": earlier.data.model_copy(update={"train": train_corpora}),
            "fit": fit.model_dump(mode="json"),
        }
    )
    return trained(job, folder)


def trained(job: TrainJob, folder: Path) -> dict[str, float]:
    """Train unless the folder has the result, and return the strict F1 on both parts, in percent."""
    path = folder / RESULT_NAME
    if not path.exists():
        train.train(job, train.TrainOptions(folder=folder, tracked=False, resume=True))
    result = json.loads(path.read_bytes())
    f1 = {part: round(result[part]["scores"]["all"]["f1"], 2) for part in ("test", "dev")}
    return {"litbank_test_f1": f1["test"], "ewt_dev_f1": f1["dev"]}


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw F1 against the words that were looked at, with the range over the seeds; dotted lines only join points."""
    figure, axes = plt.subplots(figsize=(7, 4))
    before = report["before"]["litbank_test_f1"]
    for choice, name in CHOICES.items():
        runs = [run for run in report["runs"] if run["choice"] == name]
        across = [0, *(run["words_looked_at"] for run in runs)]
        scores = [run["litbank_test_f1"] for run in runs]
        up = [before, *(score["mean"] for score in scores)]
        axes.plot(across, up, color=COLOURS[choice], linestyle="dotted")
        low, high = ([score[end] for score in scores] for end in ("min", "max"))
        spans = [[middle - end for middle, end in zip(up[1:], low, strict=True)]]
        spans += [[end - middle for middle, end in zip(up[1:], high, strict=True)]]
        style = {"color": COLOURS[choice], "marker": MARKERS[choice], "linestyle": "none", "capsize": 4}
        axes.errorbar(across[1:], up[1:], yerr=spans, label=name, **style)
    axes.set_xlabel("words that the annotator looked at")
    axes.set_ylabel("F1 on LitBank test, percent")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=150, bbox_inches="tight", metadata={"Software": ""})


if __name__ == "__main__":
    main()
