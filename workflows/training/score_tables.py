"""Scores of an evaluation as text for people, and as tables in files."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from concord.models.evaluation.breakdown import OTHER_TYPE, SAME_TYPE, UNSEEN
from concord.workflows.console import counted, table

SHOWN_LABELS = 60
BREAKDOWNS = (
    *("scores", "draft_scores", "label_scores", "by_mention_length", "by_sentence_length", "by_novelty"),
    "by_position",
)
SCORE_COLUMNS = ("precision", "recall", "f1", "gold", "predicted", "correct")
PART_NAMES = {
    SAME_TYPE: "  with this label",
    OTHER_TYPE: "  with other labels only",
    UNSEEN: "unseen",
    "O": "outside",
    "S": "single",
    "B": "first",
    "I": "inside",
    "E": "last",
}
_NO_DRAFT = {"f1": 0.0}


def describe_scores(values: Mapping[str, Any]) -> str:
    """Return the answer of ``concord evaluate`` as text."""
    size = ", ".join(counted(values[f"{noun}s"], noun) for noun in ("document", "sentence", "word"))
    speed = f"{values['words_per_second']:,.0f} words/s, {values['sentences_per_second']:,.1f} sentences/s"
    refined = f"stage two decided the labels of {counted(values['refined_words'], 'word')}"
    return "\n".join(
        [
            f"{values['tagger']} {values['digest'][:12]} on {', '.join(values['data'])}",
            f"{size}; {speed}",
            "",
            *(_describe_token_labels(values) if "accuracy" in values else _describe_entities(values)),
            *([] if values["threshold"] is None else [refined]),
            _describe_uncertainty(values["uncertainty"]),
        ]
    )


def write_tables(values: Mapping[str, Any], folder: Path, *, name: str) -> None:
    """Write scores into a folder: all of them as NAME.json, the breakdowns as one table NAME.csv.

    Args:
        values: from ``score_tagger``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as stream:
        columns = ["breakdown", "part", *SCORE_COLUMNS]
        writer = csv.DictWriter(stream, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for breakdown in BREAKDOWNS:
            for part, found in (values.get(breakdown) or {}).items():
                writer.writerow({"breakdown": breakdown, "part": part, **found})


def _describe_token_labels(values: Mapping[str, Any]) -> list[str]:
    frequent = sorted(values["label_scores"].items(), key=lambda item: (-item[1]["gold"], item[0]))
    rows = [(label, found["recall"], found["precision"], found["gold"]) for label, found in frequent[:SHOWN_LABELS]]
    rest = [f"and {len(frequent) - SHOWN_LABELS:,} more labels: --json"] if len(frequent) > SHOWN_LABELS else []
    titles = {"by_sentence_length": "words by length of the sentence", "by_novelty": "words by training corpus"}
    return [
        f"accuracy {values['accuracy']:.2f} % (drafts: {values['draft_accuracy']:.2f} %)",
        "",
        table(rows, header=("label", "accuracy", "precision", "gold")),
        *rest,
        "",
        _parts_table(values, titles, {"accuracy": "recall", "gold": "gold"}),
        "",
    ]


def _describe_entities(values: Mapping[str, Any]) -> list[str]:
    scores, drafts = values["scores"], values["draft_scores"]
    rows = [
        (kind, found["precision"], found["recall"], found["f1"], found["gold"], drafts.get(kind, _NO_DRAFT)["f1"])
        for kind, found in scores.items()
    ]
    titles = {
        "by_mention_length": "names by words",
        "by_sentence_length": "names by words of the sentence",
        "by_novelty": "names by training corpus",
        "by_position": "words by place in the name",
    }
    return [
        table(rows, header=("type", "precision", "recall", "F1", "gold", "draft F1")),
        "",
        _parts_table(values, titles, {"precision": "precision", "recall": "recall", "F1": "f1", "gold": "gold"}),
        "",
        f"seqeval, strict: F1 {values['seqeval_f1']:.2f}",
        *_describe_recurring(values),
    ]


def _parts_table(values: Mapping[str, Any], titles: Mapping[str, str], columns: Mapping[str, str]) -> str:
    """Lay out several breakdowns in one table with common columns.

    Args:
        titles: key of a breakdown -> its title.
        columns: header -> key of a score.
    """
    rows: list[Sequence[object]] = []
    for key, title in titles.items():
        parts = {name: part for name, part in (values[key] or {}).items() if part["gold"] or part["predicted"]}
        if parts:
            rows.append((title, *[""] * len(columns)))
        for name, part in parts.items():
            rows.append((f"  {PART_NAMES.get(name, name)}", *(part[score] for score in columns.values())))
    return table(rows, header=("", *columns), right=range(1, len(columns) + 1))


def _describe_recurring(values: Mapping[str, Any]) -> list[str]:
    lines = ["no name recurs within a document"]
    agreeing, drafts = values["consistency"], values["draft_consistency"]
    if agreeing["share"] is not None and drafts["share"] is not None:
        share = f"{agreeing['share']:.2f} % of {agreeing['occurrences']:,} occurrences"
        lines = [f"recurring names that agree within their document: {share} (drafts: {drafts['share']:.2f} %)"]
    right, drafts = values["recurring_names"], values["draft_recurring_names"]
    if right["gold"]:
        share = f"{right['recall']:.2f} % of {right['gold']:,} mentions"
        lines.append(f"recurring names that are right: {share} (drafts: {drafts['recall']:.2f} %)")
    return lines


def _describe_uncertainty(found: Mapping[str, Any]) -> str:
    means = [
        f"{mean:.3f} nats where {outcome}"
        for mean, outcome in ((found["mean_right"], "right"), (found["mean_wrong"], "wrong"))
        if mean is not None
    ]
    ratio = "" if found["ratio"] is None else f" ({found['ratio']:.1f} times)"
    return f"uncertainty of drafts: {', '.join(means)}{ratio}"
