"""The report of a run: one self-contained HTML file that makes no network requests."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from concord.models.bundles.manifest import read_saved
from concord.models.errors import ModelError
from concord.models.labels.spans import OUTSIDE, split_label
from concord.pipeline.identity import ComponentIdentity
from concord.pipeline.output.document_rows import CollectedDocument, TokenRow, words_with_spaces
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.past_generations import PastGeneration, past_generations
from concord.pipeline.output.shard_stats import backed_off, total_counts
from concord.pipeline.output.tables import title_of
from concord.pipeline.plan import Plan
from concord.pipeline.report.dependency_arcs import draw_tree
from concord.pipeline.report.statistics import (
    BIN_WIDTH,
    DEFAULT_LIMITS,
    Limits,
    Quality,
    RecurringName,
    ShownSentence,
    measure_quality,
)
from concord.pipeline.report.templates import format_count, lay_out_bars, load_template, write_page
from concord.pipeline.report.type_colours import type_colours
from concord.pipeline.storage.output_paths import OutputPath

REPORT_NAME = "report.html"
RUNS = 30
"""Generations, the newest, in the charts of runs."""
CONTEXT_WORDS = 8
"""Words shown on each side of an example."""


def write_report(folder: OutputFolder, limits: Limits = DEFAULT_LIMITS) -> OutputPath:
    """Write ``_run/report.html`` atomically, replacing any existing one, and return its path.

    Raises:
        PlanError: when the folder contains no finished run.
        IntegrityError: when the manifest or a part cannot be read.
        ReconciliationError: when read = annotated + unchanged + dead letters does not hold.
        StoreError: when there is no space.
    """
    folder.generations.check_whole()
    quality, past = measure_quality(folder, limits), past_generations(folder)
    content = render_report(quality, stats=folder.stats(), limits=limits, past=past)
    path = folder.metadata / REPORT_NAME
    write_page(path, content, staging=folder.staging)
    return path


def render_report(
    quality: Quality, *, stats: Mapping[str, Any], limits: Limits, past: Sequence[PastGeneration] = ()
) -> str:
    """Render the report as HTML; ``stats`` is the content of stats.json, of which missing keys are not shown."""
    plan, manifest = quality.plan, quality.manifest
    counts = total_counts(manifest.shards)
    threshold = _threshold(plan)
    # Shades are relative to the darkest word shown.
    darkest = max(
        (word.uncertainty or 0.0 for item in quality.uncertain_sentences for word in item.tokens), default=1.0
    )
    return load_template("concord.pipeline.report", "report.html.j2").render(
        quality=quality,
        manifest=manifest,
        plan=plan,
        collection=Path(plan.config.input).name or plan.config.input,
        tagger=_component(plan.tagger),
        parser=_component(plan.parser),
        stages=_stages(stats),
        runs=_run_charts(past[-RUNS:]),
        threshold=threshold,
        chart=_chart(quality.histogram, threshold),
        near_ties=counts["near_ties"],
        repeated_names=counts["repeated_names"],
        unlabelled_names=counts["unlabelled_names"],
        backed_off=backed_off(manifest.shards),
        colours=type_colours(kind.label for kind in quality.types),
        changes=[
            {"change": change, "examples": [_excerpt(*example) for example in change.examples]}
            for change in quality.changes[: limits.changes]
        ],
        other_changes=sum(change.count for change in quality.changes[limits.changes :]),
        names=[_name_view(name) for name in quality.least_consistent],
        uncertain=[_uncertain_view(sentence, darkest) for sentence in quality.uncertain_sentences],
        documents=[_document_view(document, most=limits.document_sentences) for document in quality.whole_documents],
        outside=OUTSIDE,
    )


def _threshold(plan: Plan) -> float | None:
    """Return the nats above which stage two decided; None if the tagger has one stage or no longer exists."""
    try:
        own = read_saved(Path(plan.tagger_folder)).config.get("threshold")
    except ModelError:
        return None
    chosen = plan.config.tagger.threshold
    if not isinstance(own, int | float):
        return None
    return own if chosen is None else chosen


def _component(identity: ComponentIdentity) -> str:
    return f"{identity.name} {identity.version}" if identity.version else identity.name


def _stages(stats: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return how long each stage took, and its words per second."""
    seconds = dict(stats.get("seconds", {}))
    if "wall_seconds" in stats:
        seconds["whole run"] = stats["wall_seconds"]
    words = stats.get("words", 0)
    return [
        {"name": name, "seconds": taken, "rate": round(words / taken) if taken > 0 and words else None}
        for name, taken in seconds.items()
    ]


def _run_charts(past: Sequence[PastGeneration]) -> list[dict[str, Any]]:
    """Return a small chart of each figure that two generations have: values, and points in percent of the chart.

    Its height is a fifth of the highest value, or what the values need, so that little change looks like little.
    """
    series: defaultdict[str, dict[int, float]] = defaultdict(dict)
    types = sorted({label for one in past for label in one.entities})
    for place, one in enumerate(past):
        words, seconds = one.stats.get("counts", {}).get("tokens"), one.stats.get("seconds")
        figures = {"words": words, "seconds": seconds, "words per second": one.words_per_second}
        figures |= {title: share.shown for title, share in one.shares(types).items()}
        for title, value in figures.items():
            if value is not None:
                series[title][place] = value
    charts = []
    for title, values in series.items():
        low, high = min(*values.values(), 0.8 * max(values.values())), max(values.values())
        across, up = 100 / max(1, len(past) - 1), 100 / ((high - low) or 1)
        points = [(across * place, 100 - up * (value - low)) for place, value in values.items()]
        texts = [f"{value:.3g}" if value < 100 else format_count(round(value)) for value in values.values()]
        shown = list(zip((past[place].name for place in values), texts, strict=True))
        charts.append({"title": title, "values": shown, "points": points})
    return [chart for chart in charts if len(chart["points"]) > 1]


def _chart(histogram: Sequence[int], threshold: float | None) -> dict[str, Any]:
    """Lay out the histogram, with logarithmic heights: most words are certain and would dwarf all others."""
    bins = 10 * max(1, math.ceil(len(histogram) / 10))
    # Heights start below 1, so that a single word has a visible bar.
    decades = max(1, math.ceil(math.log10(max(histogram, default=1) + 1)))
    full = bins * BIN_WIDTH

    def height(count: int) -> float:
        offset = 0.5
        return (math.log10(count) + offset) / (decades + offset)

    return {
        "bars": lay_out_bars(histogram, bins=bins, bin_width=BIN_WIDTH, height=height),
        "across": [(10 * tenth, f"{full * tenth / 10:.2f}") for tenth in range(0, 11, 2)],
        "up": [(100 * height(10**power), format_count(10**power)) for power in range(decades + 1)],
        "threshold": 100 * threshold / full if threshold is not None and 0 <= threshold <= full else None,
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Word:
    """A word with the space before it; ``shade`` is 0..1."""

    gap: str
    text: str
    note: str = ""
    shade: float = 0.0
    marked: bool = False


@dataclass(kw_only=True, slots=True)
class _Segment:
    """Words of one entity, or words outside entities; ``drafts`` are the types of stage one where they differ."""

    label: str = ""
    words: list[_Word] = field(default_factory=list)
    drafts: set[str] = field(default_factory=set)

    @property
    def was(self) -> str:
        """The types of stage one; empty if they are the same."""
        return ", ".join(sorted(self.drafts))


def _segments(tokens: Sequence[TokenRow], words: Sequence[_Word]) -> list[_Segment]:
    """Group a sentence's words by entity; one that started in the sentence before may continue with ``I-``."""
    segments: list[_Segment] = []
    for token, word in zip(tokens, words, strict=True):
        prefix, kind = split_label(token.ner)
        if prefix == "B" or not segments or segments[-1].label != kind:
            segments.append(_Segment(label=kind))
        segments[-1].words.append(word)
        _, draft = split_label(token.draft_ner)
        if kind and draft != kind and token.changed:
            segments[-1].drafts.add(draft or OUTSIDE)
    return segments


def _excerpt(sentence: ShownSentence, position: int) -> dict[str, Any]:
    start, end = max(0, position - CONTEXT_WORDS), min(len(sentence.tokens), position + CONTEXT_WORDS + 1)
    words = [
        _Word(gap=gap, text=text, marked=number == position)
        for number, (gap, text) in enumerate(words_with_spaces(sentence.tokens[start:end]), start)
    ]
    return {"sentence": sentence, "words": words, "cut_before": start > 0, "cut_after": end < len(sentence.tokens)}


def _name_view(name: RecurringName) -> dict[str, Any]:
    labels = sorted(name.labels.items(), key=lambda entry: (-entry[1], entry[0]))
    return {"name": name.name, "doc_id": name.doc_id, "labels": labels, "total": sum(name.labels.values())}


def _uncertain_view(sentence: ShownSentence, darkest: float) -> dict[str, Any]:
    nats = [token.uncertainty or 0.0 for token in sentence.tokens]
    words = [
        _Word(gap=gap, text=text, note=f"{value:.2f} nats", shade=round(value / darkest, 2))
        for value, (gap, text) in zip(nats, words_with_spaces(sentence.tokens), strict=True)
    ]
    return {
        "sentence": sentence,
        "segments": _segments(sentence.tokens, words),
        "highest": max(nats),
    }


def _document_view(document: CollectedDocument, *, most: int) -> dict[str, Any]:
    """Return the first sentences of a document, each with its tree."""
    shown = []
    for sentence in document.sentences[:most]:
        words = [_Word(gap=gap, text=text) for gap, text in words_with_spaces(sentence.tokens)]
        segments = _segments(sentence.tokens, words)
        shown.append({"number": sentence.row.sent_id + 1, "segments": segments, "tree": draw_tree(sentence.tokens)})
    return {
        "row": document.row,
        "title": title_of(document.row.meta) or document.row.doc_id,
        "sentences": shown,
        "more": len(document.sentences) - len(shown),
    }
