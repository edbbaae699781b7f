"""F1 against the number of labelled sentences, with and without a list of terms.

Command: python benchmarks/bench_few_labels.py --corpus ../shared/data/labelled/crossner_science \
    --work /tmp/few_labels --summary benchmarks/results/few_labels_cpu_202611.json

The list holds the names of all training sentences with their most frequent types. The unlabelled text is a part of the
dev set whose labels are not read. The first 50 sentences of the dev set choose epoch and threshold of every tagger, of
those with 0 labelled sentences as well, without the types that the labelled sentences lack. Labelled sentences are read
equally often with the list and without it. All are scored on the test set with every type; UANet also with the list as
``tagger.terms``, without the types that it does not know.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from environment import environment, spread

from concord.models.bundles.checkpoint import load_tagger
from concord.models.data.sentence import Sentence
from concord.models.evaluation.metrics import gold_sequences, span_scores
from concord.models.labels import BIO, decode_spans
from concord.pipeline.corpora.gold_corpus import GoldDocument, read_gold, write_gold
from concord.pipeline.corpora.read_terms import read_terms
from concord.workflows.corpora import label_types, without_labels
from concord.workflows.training import train
from concord.workflows.training.job import read_train_job

DEV = 50
ENCODER = {"last_layers": 4}
LINEAR = {"word_dimension": 0, "characters": None, "dropout": 0.1}
SETTINGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "UANet with the list": ("uanet", "encoder", {}),
    "UANet": ("uanet", "encoder", {}),
    "BiLSTM-CRF over the encoder": ("bilstm_crf", "encoder", {}),
    "BiLSTM-CRF": ("bilstm_crf", "small", {}),
    "linear layer over the encoder": (
        "bilstm_softmax",
        "small",
        {
            "model.encoder": ENCODER,
            "model.representation": LINEAR,
            "model.lstm": None,
            "fit.optimizers.tagger.learning_rate": 0.01,
        },
    ),
}
WITH_LIST = "UANet with the list"


def main() -> None:
    """Train and score everything, and write one JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[0, 50, 100, 200])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--unlabelled", type=int, default=200)
    parser.add_argument("--outside", type=float, nargs="+", default=[0.1])
    parser.add_argument("--taggers", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    corpora = _prepare(arguments.corpus, arguments.work, sizes=arguments.sizes, unlabelled=arguments.unlabelled)
    report: dict[str, Any] = {
        **environment("bench_few_labels.py"),
        "corpus": arguments.corpus.name,
        "dev": DEV,
        **corpora,
        "runs": [],
    }
    for name in arguments.taggers:
        for size in arguments.sizes:
            for outside in arguments.outside if name == WITH_LIST else [None]:
                if size or name == WITH_LIST:
                    entry = {"tagger": name, "labelled": size, "outside": outside}
                    scores = [_score(name, size, seed, arguments.work, outside) for seed in arguments.seeds]
                    entry |= {key: spread([score[key] for score in scores], digits=2) for key in scores[0]}
                    report["runs"].append(entry)
                    arguments.summary.write_text(json.dumps(report, indent=1) + "\n")
                    print(json.dumps(entry), flush=True)


def _prepare(corpus: Path, work: Path, *, sizes: Sequence[int], unlabelled: int) -> dict[str, Any]:
    """Write the corpora and the list; return their sizes, and the score of the list by itself."""
    work.mkdir(parents=True, exist_ok=True)
    parts = {
        part: [sentence for document in read_gold(next(corpus.glob(f"{part}.*"))) for sentence in document]
        for part in ("train", "dev", "test")
    }
    chosen = random.Random(1).sample(parts["train"], len(parts["train"]))
    for size in sizes:
        _write(work / f"train{size}.conll", chosen[:size])
    _write(work / "dev.conll", parts["dev"][:DEV])
    _write(work / "test.conll", parts["test"])
    texts = parts["dev"][DEV : DEV + unlabelled]
    _write(work / "texts.conll", texts)
    types: dict[str, Counter[str]] = {}
    for sentence in parts["train"]:
        for span in decode_spans(sentence.labels or (), "BIO"):
            name = " ".join(sentence.words[span.start : span.end])
            types.setdefault(name, Counter())[span.label] += 1
    lines = [json.dumps({"label": found.most_common(1)[0][0], "pattern": name}) for name, found in types.items()]
    (work / "terms.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    terms = read_terms(work / "terms.jsonl")
    matches = sum(len(terms.spans(sentence)) for sentence in texts)
    names = sum(len(decode_spans(sentence.labels or (), "BIO")) for sentence in texts)
    listed = [terms.mark(sentence).terms or ("O",) * len(sentence.words) for sentence in parts["test"]]
    alone = span_scores([sentence.labels or () for sentence in parts["test"]], listed)["all"]
    return {
        "terms": len(types),
        "unlabelled": len(texts),
        "matches": matches,
        "names": names,
        "test": len(parts["test"]),
        "list_alone": {
            "f1": round(alone.f1, 2),
            "precision": round(alone.precision, 2),
            "recall": round(alone.recall, 2),
        },
    }


def _write(path: Path, sentences: Sequence[Sentence]) -> None:
    documents = [GoldDocument(name=None, sentences=(sentence,), lines=(1,)) for sentence in sentences]
    write_gold(path, documents, form="conll")


def _score(name: str, size: int, seed: int, work: Path, outside: float | None) -> dict[str, float]:
    """Train a tagger and return its F1 on the test set, in percent, and the number of epochs."""
    tagger, profile, changes = SETTINGS[name]
    sentences = size or len(read_gold(work / "texts.conll"))
    settings: dict[str, Any] = {
        "data.train": [str(work / f"train{size}.conll")] if size else [],
        "data.dev": str(work / "dev.conll"),
        # About as many steps on labelled sentences, however many there are.
        "fit.epochs": max(12, min(60, 4000 // sentences)),
        "fit.patience": 8,
        "fit.batch_sentences": 8,
        "fit.seed": seed,
        **changes,
    }
    if outside is not None:
        listed = {"terms": str(work / "terms.jsonl"), "unlabelled": str(work / "texts.conll"), "outside": outside}
        settings |= {f"data.{key}": value for key, value in listed.items()}
    else:
        gold, dev = (_types(work / file) for file in (f"train{size}.conll", "dev.conll"))
        settings["data.labels"] = dict.fromkeys(sorted(dev - gold))
    overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    job = read_train_job(Path(f"conf/train/{tagger}.yaml"), profile=profile, overrides=overrides)
    result = train.train(job, train.TrainOptions(folder=work / f"{job.digest[:16]}", tracked=False, resume=True))
    loaded = load_tagger(result.bundle)
    documents = read_gold(work / "test.conll")
    plain = without_labels(documents)
    scores = {"f1": _f1(loaded, plain, documents), "epochs": float(result.epochs)}
    if tagger == "uanet":
        known = set(loaded.entity_types)
        lines = (work / "terms.jsonl").read_text(encoding="utf-8").splitlines()
        listed_types = work / f"{job.digest[:16]}.terms.jsonl"
        listed_types.write_text("".join(f"{line}\n" for line in lines if json.loads(line)["label"] in known))
        terms = read_terms(listed_types)
        scores["f1_with_tagger_terms"] = _f1(loaded, [[terms.mark(one) for one in row] for row in plain], documents)
    return scores


def _types(path: Path) -> set[str]:
    return label_types(read_gold(path), BIO)


def _f1(tagger: Any, plain: Any, gold: Any) -> float:
    predicted = [found.labels for document in tagger.predict_documents(plain) for found in document]
    return span_scores(gold_sequences(gold), predicted)["all"].f1


if __name__ == "__main__":
    main()
