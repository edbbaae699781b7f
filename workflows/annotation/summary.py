"""The text that a finished run prints: what it did, what it found, and where the results are."""

from collections.abc import Mapping, Sequence
from itertools import islice
from textwrap import shorten

from concord.pipeline.config import AnnotateConfig
from concord.pipeline.documents import STAGES, DeadLetter
from concord.pipeline.output.collection import Collection, read_dead_letters
from concord.pipeline.output.manifest import Manifest
from concord.pipeline.output.shard_stats import (
    EXTRACTED,
    GUESSED_ENCODINGS,
    LOST_PAGES,
    META_NULLS,
    REPLACED,
    total_counts,
)
from concord.pipeline.plan import Plan
from concord.pipeline.report.html import count_names
from concord.pipeline.run_report import RunReport
from concord.pipeline.storage.object_stores import StorePath
from concord.workflows.console import counted, indented, short_path, short_source, table

LEAST_SECONDS = 0.1
"""Stages that took less are not listed: their rate says nothing."""
SHOWN_LINES = 3
DEAD_LETTER_WIDTH = 160
SHOWN_NAMES = 5
MOST_ENTITIES = 1_000_000
"""Larger collections list their names only in the report."""
_REMARKS = {
    GUESSED_ENCODINGS: ("text", "not in UTF-8; encodings guessed (encoding_confidence); reader.encoding sets one"),
    REPLACED: ("character", "U+FFFD in place of bytes that are not of the encoding (column replaced)"),
    EXTRACTED: ("text", "extracted and stored, since offsets count in them (columns raw_text and parts of documents)"),
    LOST_PAGES: ("page", "lost of documents that were annotated (documents.lost, and rows of errors with a page)"),
}
"""What is said of some counts, after the noun that they count."""


def equation(outcome: Manifest | RunReport) -> str:
    """Format the equation that holds for every run."""
    return (
        f"{outcome.read:,} read = {outcome.annotated:,} annotated + {outcome.unchanged:,} unchanged "
        f"+ {counted(outcome.dead_letters, 'dead letter')}"
    )


def describe_run(report: RunReport, *, config: AnnotateConfig, collection: Collection) -> str:
    """Describe what a run did, what it found, and where the results are."""
    plan, manifest = collection.plan, collection.manifest
    parts = [
        equation(report),
        "\n".join(describe_changes(report)) if plan.generation else "",
        _dead_letters(report, config, collection),
        *_remarks(manifest),
        _meta_nulls(manifest),
        _work_done(report),
        _found(report, collection),
        _places(report, plan),
        describe_lost_files(report.lost_files),
    ]
    return "\n\n".join(part for part in parts if part)


def describe_changes(report: RunReport) -> list[str]:
    """Describe how the input differs from the existing output, and why documents are processed again."""
    lines = [report.changes.description]
    if report.changes.parsed:
        lines.append(f"the parses of {report.changes.parsed:,} are reused")
    return [*lines, *(f"because {reason}" for reason in report.reasons)]


def describe_content(counts: Mapping[str, int]) -> str:
    """Describe the size of a collection, given its ``total_counts``."""
    return (
        f"{counts['entities']:,} entities in {counted(counts['documents'], 'document')}, "
        f"{counted(counts['sentences'], 'sentence')}, {counted(counts['tokens'], 'word')}"
    )


def _made_all(report: RunReport) -> bool:
    """Return whether the collection holds nothing but what this run annotated."""
    return not report.unchanged and report.done_before < max(1, report.shards)


def describe_lost_files(lost_files: Sequence[str]) -> str:
    """Name the files that were lost; empty if there are none."""
    if not lost_files:
        return ""
    names = [*map(short_source, lost_files)]
    names[SHOWN_NAMES:] = [f"{len(names) - SHOWN_NAMES:,} more"] if len(names) > SHOWN_NAMES else []
    return f"{counted(len(lost_files), 'file')} lost, as a whole or from some place on: {', '.join(names)}"


def _dead_letters(report: RunReport, config: AnnotateConfig, collection: Collection) -> str:
    if not report.dead_letters:
        return ""
    dead_letters = read_dead_letters(collection.folder, collection.manifest.shards)
    lines = [_dead_letter_line(dead_letter) for dead_letter in islice(dead_letters, SHOWN_LINES)]
    if report.dead_letters > len(lines):
        lines.append(f"{report.dead_letters - len(lines):,} more in {short_path(report.output / 'errors')}")
    if report.exceeds(config.max_dead_letters):
        lines.append(f"more than allowed: {config.max_dead_letters:.1%} of {report.read:,} (max_dead_letters)")
    where = "" if _made_all(report) else " in the collection"
    return f"{counted(report.dead_letters, 'dead letter')}{where}\n" + indented("\n".join(lines))


def _remarks(manifest: Manifest) -> list[str]:
    counts = total_counts(manifest.shards)
    return [f"{counted(counts[key], noun)} {rest}" for key, (noun, rest) in _REMARKS.items() if counts.get(key)]


def _meta_nulls(manifest: Manifest) -> str:
    counts = total_counts(manifest.shards).items()
    fields = {key.removeprefix(META_NULLS): count for key, count in counts if key.startswith(META_NULLS)}
    values, names = counted(sum(fields.values()), "value"), [f"{name} {count:,}" for name, count in fields.items()]
    more = ", ..." if len(names) > SHOWN_NAMES else ""
    return (
        f"{values} could not be stored in meta and became null, by field: {', '.join(names[:SHOWN_NAMES])}{more}"
        if fields
        else ""
    )


def _dead_letter_line(dead_letter: DeadLetter) -> str:
    uri, message, position = dead_letter.source_uri, dead_letter.message, dead_letter.position
    place = short_source(uri)
    located = message.replace(uri, place) if message.startswith(uri) else f"{place}, at {position}: {message}"
    return shorten(f"{dead_letter.stage}: {located}", DEAD_LETTER_WIDTH, placeholder=" ...")


def _work_done(report: RunReport) -> str:
    new = report.shards - report.done_before
    if not report.read:
        return "nothing to do: the input has no records"
    if not new:
        return f"nothing to do: {counted(report.read, 'record')} already committed"
    taken = {stage: report.seconds.get(stage, 0.0) for stage in STAGES} | {"run": report.wall_seconds}
    rows = [
        (stage, f"{seconds:.1f} s", f"{report.words / seconds:,.0f} words/s" if report.words else "")
        for stage, seconds in taken.items()
        if seconds >= LEAST_SECONDS
    ]
    before = f"; {report.done_before:,} already committed" if report.done_before else ""
    return f"{report.words:,} words in {counted(new, 'shard')}{before}\n{indented(table(rows, right=(1, 2)))}"


def _found(report: RunReport, collection: Collection) -> str:
    counts = total_counts(collection.manifest.shards)
    kinds = {key.partition(".")[2]: count for key, count in counts.items() if key.startswith("entities.")}
    types = count_names(collection)[0] if counts["entities"] <= MOST_ENTITIES else ()
    names = {kind.label: kind.names[:SHOWN_NAMES] for kind in types}
    rows = [
        (kind, count, ", ".join(f"{name} {times:,}" for name, times in names.get(kind, ())))
        for kind, count in sorted(kinds.items(), key=lambda item: -item[1])
    ]
    holds = "" if _made_all(report) else "the collection holds "
    head = f"{holds}{describe_content(counts)}"
    lines = [head, *([indented(table(rows))] if rows else [])]
    if "candidates" in counts:
        lines.append(f"  and {counted(counts['candidates'], 'candidate')} besides, so that few names are missed")
    if counts["refined_tokens"]:
        lines.append(
            f"  stage two labelled {counted(counts['refined_tokens'], 'uncertain word')} again "
            f"and changed {counts['changed_tokens']:,}"
        )
    if compared := counts.get("bf16.compared_tokens"):
        changed = counts["bf16.changed_tokens"]
        lines.append(f"  bf16 changed {changed:,} of {compared:,} labels compared with fp32 ({changed / compared:.3%})")
    return "\n".join(lines)


def _places(report: RunReport, plan: Plan) -> str:
    output = short_path(report.output)
    rows = [
        ("parser", plan.parser.description),
        ("tagger", plan.tagger.description),
        ("report", str(short_path(report.report)) if report.report is not None else f"concord report {output}"),
    ]
    if report.read:
        # pandas needs a driver of its own for a store, and would read the parts that the last change replaced.
        look = f"import pandas; print(pandas.read_parquet('{output}/entities'))"
        if isinstance(output, StorePath):
            look = f"import concord; print(concord.open('{output}').entities.to_table().to_pandas())"
        rows += [
            ("tables", f"{output}/{{documents,sentences,tokens,entities,errors,names}}/*.parquet"),
            ("look", f'python -c "{look}"'),
        ]
    rows.append(("check", f"concord verify {output}"))
    return table(rows)
