"""``concord compare``: its answer as a table on the console, as JSON and as an HTML page.

The page shows the scores with a forest plot, and the documents with most differences.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from concord.models.data.sentence import Sentence
from concord.models.labels.spans import decode_spans
from concord.pipeline.report.templates import load_template, write_page
from concord.pipeline.report.type_colours import type_colours
from concord.workflows.console import Answer, counted, table
from concord.workflows.evaluation.compare import CompareJob, Comparison, compare, describe_tagger, evidence
from concord.workflows.evaluation.paired_tests import DocumentChange, Line, describe_line

SHOWN_DOCUMENTS = 12
SHOWN_SENTENCES = 8
"""Sentences shown of one document; the page says how many more differ."""
_TICKS = 8


def compare_command(job: CompareJob, *, output: Path | None = None) -> Answer:
    """Compare two taggers, and write the page if ``output`` names one."""
    comparison = compare(job)
    values = dict(evidence(job, comparison))
    if output is not None:
        write_page(output, render_page(job, comparison), staging=output.parent)
        values["report"] = output
    return Answer(values=values, text=_describe(job, comparison))


def render_page(job: CompareJob, comparison: Comparison) -> str:
    """Return the page as HTML."""
    shown = comparison.changes[:SHOWN_DOCUMENTS]
    return load_template("concord.workflows.evaluation", "comparison.html.j2").render(
        job=job,
        comparison=comparison,
        first=describe_tagger(job.first),
        second=describe_tagger(job.second),
        level=100 * (1 - job.procedure.alpha),
        chart=_chart(comparison.lines),
        descriptions=[describe_line(line, unit=comparison.measure) for line in comparison.lines],
        gains=_gains(comparison),
        colours=type_colours(_entity_types(comparison)),
        documents=[_show_document(change, comparison) for change in shown],
        more=len(comparison.changes) - len(shown),
        left_out=_left_out(comparison),
    )


def _describe(job: CompareJob, comparison: Comparison) -> str:
    size = counted(len(comparison.documents), comparison.unit)
    unit_note = "" if comparison.unit == "document" else "; the corpora mark no documents, so each sentence is one"
    header = ("", "A", "B", "B - A", "from", "to", "p", "Holm", "detectable", f"{comparison.unit}s differ")
    return "\n".join(
        [
            f"A  {describe_tagger(job.first)}",
            f"B  {describe_tagger(job.second)}",
            f"on {', '.join(job.data)}: {size}{unit_note}",
            *_left_out(comparison),
            "",
            comparison.verdict,
            "",
            table([_row(line) for line in comparison.lines], header=header, right=range(1, len(header))),
            "",
            f"{100 * (1 - job.procedure.alpha):g} % intervals; p from {job.procedure.rounds:,} paired randomisations; "
            f"Holm: p corrected over {counted(len(comparison.lines), 'line')}",
        ]
    )


def _left_out(comparison: Comparison) -> list[str]:
    """Describe in a sentence the types that do not count, if there are some."""
    names = ", ".join(comparison.left_out)
    return [f"without {names}, which only B knows: the corpora have no entity of it"] if names else []


def _row(line: Line) -> tuple[object, ...]:
    difference = line.difference
    signed = tuple(f"{value:+.2f}" for value in (difference.mean, difference.low, difference.high))
    return (line.name, line.first, line.second, *signed, f"{line.p:.4f}", f"{line.corrected:.4f}",
            line.detectable, line.differing)  # fmt: skip


def _entity_types(comparison: Comparison) -> list[str]:
    if comparison.measure == "accuracy":
        return []
    gold = [[sentence.labels or () for sentence in document.sentences] for document in comparison.documents]
    sides = (gold, comparison.first, comparison.second)
    documents = [labels for side in sides for labels in side]
    return sorted({span.label for labels in documents for sentence in labels for span in decode_spans(sentence, "BIO")})


class _Chart(NamedTuple):
    """The forest plot of the differences; all positions are in percent of its width.

    Attributes:
        rows: the lines, each with where its interval starts, its mean is, and the interval ends.
        ticks: with their texts.
    """

    rows: Sequence[tuple[Line, float, float, float]]
    zero: float
    ticks: Sequence[tuple[float, str]]


def _chart(lines: Sequence[Line]) -> _Chart:
    ends = [end for line in lines for end in (line.difference.low, line.difference.high, line.difference.mean)]
    left, right = min(0.0, *ends), max(0.0, *ends)
    step = next(step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if (right - left) / step <= _TICKS)
    first, last = int(left // step), -int(-right // step)
    left, right = first * step, max(last, first + 1) * step

    def position(value: float) -> float:
        return 100 * (value - left) / (right - left)

    intervals = [(line, line.difference) for line in lines]
    return _Chart(
        rows=[(line, position(it.low), position(it.mean), position(it.high)) for line, it in intervals],
        zero=position(0.0),
        ticks=[(position(tick * step), f"{tick * step:+.3g}") for tick in range(first, max(last, first + 1) + 1)],
    )


def _gains(comparison: Comparison) -> dict[str, int]:
    """Count the documents in which B is better than A, equal, or worse."""
    nets = [change.fixed - change.broken for change in comparison.changes]
    better, worse = sum(net > 0 for net in nets), sum(net < 0 for net in nets)
    return {"better": better, "even": len(comparison.documents) - better - worse, "worse": worse}


class _Segment(NamedTuple):
    """The words of an entity, or words outside of entities; with token labels a single word."""

    text: str
    label: str = ""
    wrong: bool = False


class _ShownDocument(NamedTuple):
    """A document with the first sentences that differ: the number of each, 1-based, and its segments by side."""

    change: DocumentChange
    title: str
    sentences: Sequence[tuple[int, Sequence[tuple[str, Sequence[_Segment]]]]]
    more: int


def _show_document(change: DocumentChange, comparison: Comparison) -> _ShownDocument:
    document = comparison.documents[change.number]
    first, second = comparison.first[change.number], comparison.second[change.number]
    gold = [sentence.labels or () for sentence in document.sentences]
    differing = [index for index in range(len(gold)) if tuple(first[index]) != tuple(second[index])]
    segments = _entity_segments if comparison.measure == "F1" else _word_segments
    sides = (("gold", gold), ("A", first), ("B", second))
    return _ShownDocument(
        change=change,
        title=document.name or f"{comparison.unit} {change.number + 1}",
        sentences=[
            (index + 1, [(side, segments(document.sentences[index], labels[index])) for side, labels in sides])
            for index in differing[:SHOWN_SENTENCES]
        ],
        more=len(differing[SHOWN_SENTENCES:]),
    )


def _entity_segments(sentence: Sentence, labels: Sequence[str]) -> list[_Segment]:
    """Split a sentence into entities, correct or wrong, and the words between them."""
    gold = set(decode_spans(sentence.labels or (), "BIO"))
    segments: list[_Segment] = []
    end = 0
    for span in decode_spans(labels, "BIO"):
        segments.append(_Segment(" ".join(sentence.words[end : span.start])))
        segments.append(_Segment(" ".join(sentence.words[span.start : span.end]), span.label, span not in gold))
        end = span.end
    segments.append(_Segment(" ".join(sentence.words[end:])))
    return [segment for segment in segments if segment.text]


def _word_segments(sentence: Sentence, labels: Sequence[str]) -> list[_Segment]:
    """Split a sentence into words; only wrong labels are shown."""
    rows = zip(sentence.words, sentence.labels or (), labels, strict=True)
    return [_Segment(word, label if label != gold else "", label != gold) for word, gold, label in rows]
