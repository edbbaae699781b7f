"""Commands that read a collection: ``status``, ``verify``, ``errors``, ``report``, ``export``, ``review``."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from textwrap import shorten
from typing import Any

import pyarrow as pa

from concord.models.errors import ConfigError
from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import IntegrityError, PlanError
from concord.pipeline.exchange.export import ExportForm, ExportReport, export_collection, read_ids
from concord.pipeline.exchange.label_studio import labeling_config
from concord.pipeline.exchange.review_queue import QueuedSentence, QueueForm, Quotas, ReviewReport, write_review_queue
from concord.pipeline.output.collection import read_dead_letters
from concord.pipeline.output.manifest import Manifest
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.run_stats import read_stats
from concord.pipeline.output.schema import OFFSET_UNIT, SCHEMA_VERSION, SCHEMAS
from concord.pipeline.output.shard_stats import collection_counts
from concord.pipeline.output.verify import verify as find_faults
from concord.pipeline.report.html import write_report
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.annotation.summary import describe_content, equation
from concord.workflows.console import Answer, counted, indented, short_path, short_source, table
from concord.workflows.progress import counting

SHOWN_DEAD_LETTERS = 50
MESSAGE_WIDTH = 100
LEFT_OUT = 3
"""Exit code when documents are missing from what was written."""
SHOWN_SENTENCES = 10


def status(output: OutputPath) -> Answer:
    """Report what a collection holds, what its last change was, and how much of a run in progress is committed."""
    folder = OutputFolder(output)
    plan = folder.plan()
    done = folder.finished_shards(plan)
    so_far = Manifest.of(plan, done.values(), read=sum(report.read for report in done.values()))
    finished = folder.is_finished(plan)
    content, change = _finished_content(folder) or (None, None)
    stats, shards = read_stats(folder), len(plan.shards) + len(plan.reused)
    values = {
        "output": folder.output,
        "finished": finished,
        "generation": plan.generation,
        "shards": shards,
        "shards_done": len(done),
        "read": plan.read,
        "read_done": so_far.read,
        **{name: getattr(so_far, name) for name in ("annotated", "unchanged", "dead_letters")},
        "collection": content,
        "last_change": change,
        "parser": plan.parser,
        "tagger": plan.tagger,
        "stats": stats,
    }
    rows = [
        ("state", "finished" if finished else "not finished; run the same annotate command to resume it"),
        *(_describe_content(content, change) if content and change else ()),
        ("shards", f"{len(done):,} of {shards:,} committed"),
        ("records", f"{so_far.read:,} of {plan.read:,} committed"),
        *([] if finished else [("so far", equation(so_far))]),
        ("input", plan.config.input),
        ("tagger", plan.tagger.description),
        ("parser", plan.parser.description),
    ]
    if stats.words_per_second:
        rows.append(("speed", f"{stats.words_per_second:,.0f} words/s"))
    return Answer(values=values, text=table(rows))


def verify(output: OutputPath, *, deep: bool) -> Answer:
    """Compare a finished run with its manifest: names and sizes, with ``deep`` also hashes and rows.

    The exit code is 1 if anything differs.
    """
    findings = find_faults(output, deep=deep)
    values = {"output": output.absolute(), "deep": deep, "findings": findings}
    if not findings:
        checked = "files, hashes and rows" if deep else "files and sizes"
        return Answer(values=values, text=f"{output}: all {checked} match the manifest")
    rows = [(finding.place, finding.problem) for finding in findings]
    return Answer(values=values, text=f"{table(rows)}\n\n{counted(len(findings), 'finding')} in {output}", exit_code=1)


def list_dead_letters(
    output: OutputPath, *, stages: Collection[str] = (), errors: Collection[str] = (), ids: Collection[str] = ()
) -> Answer:
    """List dead letters, maybe only some of them; works while a run is in progress."""
    folder = OutputFolder(output)
    reports = folder.finished_shards(folder.plan())
    existing = list(read_dead_letters(folder, (reports[shard] for shard in sorted(reports))))
    selected = [
        dead_letter
        for dead_letter in existing
        if (not stages or dead_letter.stage in stages)
        and (not errors or dead_letter.error in errors)
        and (not ids or dead_letter.doc_id in ids)
    ]
    counts = _kinds(selected)
    values = {
        "output": folder.output,
        "counts": [{"stage": stage, "error": error, "letters": n} for (stage, error), n in counts.most_common()],
        "letters": selected,
    }
    if selected:
        text = _describe_dead_letters(selected, counts, output=output)
    elif existing:
        kinds = ", ".join(f"{count:,} {stage} {error}" for (stage, error), count in _kinds(existing).most_common())
        text = f"{output}: no dead letter matches; there are {kinds}"
    else:
        text = f"{output}: no dead letters"
    return Answer(values=values, text=text)


def _kinds(dead_letters: Iterable[DeadLetter]) -> Counter[tuple[str, str]]:
    return Counter((dead_letter.stage, dead_letter.error) for dead_letter in dead_letters)


def report(output: OutputPath) -> Answer:
    """Write the HTML report, replacing any existing one, and return its path."""
    path = write_report(OutputFolder(output))
    return Answer(values={"report": path}, text=str(path))


def schema(name: str | None) -> Answer:
    """Describe the columns of one table, or of all."""
    if name is not None and name not in SCHEMAS:
        raise ConfigError(f"schema: expected one of {', '.join(SCHEMAS)}, got {name!r}")
    tables = {key: list(map(_column, schema)) for key, schema in SCHEMAS.items() if name in {None, key}}
    lines = [f"schema version {SCHEMA_VERSION}; offsets are {OFFSET_UNIT}"]
    for table_name, columns in tables.items():
        rows = [(one["name"], one["type"] + "?" * one["nullable"], one["description"]) for one in columns]
        lines += ["", table_name, indented(table(rows))]
    values = {"schema_version": SCHEMA_VERSION, "offset_unit": OFFSET_UNIT, "tables": tables}
    return Answer(values=values, text="\n".join([*lines, "", "? may be null"]))


def _column(field: pa.Field) -> dict[str, Any]:
    """Describe a column of an output table."""
    description = (field.metadata or {}).get(b"description", b"").decode()
    return {"name": field.name, "type": str(field.type), "nullable": field.nullable, "description": description}


def write_export(
    output: OutputPath, destination: Path, *, to: ExportForm, ids: Path | None, limit: int | None
) -> Answer:
    """Export a collection; exit code 3 if the text of a document is no longer available."""
    chosen = None if ids is None else read_ids(ids)
    with counting("documents") as count:
        report = export_collection(output, destination, to=to, ids=chosen, limit=limit, on_document=lambda: count(1))
    return _written(report, destination, to=to, lines=_export_lines(report, destination))


def write_review(
    output: OutputPath, destination: Path, *, to: QueueForm, quotas: Quotas, done: Sequence[Path]
) -> Answer:
    """Write a review queue without the documents that the files ``done`` list; see ``write_export`` for exit codes."""
    exclude = frozenset().union(*map(read_ids, done))
    report = write_review_queue(output, destination, to=to, quotas=quotas, exclude=exclude)
    return _written(report, destination, to=to, lines=_review_lines(report, destination))


def _finished_content(folder: OutputFolder) -> tuple[Mapping[str, int], dict[str, Any]] | None:
    """Return what readers see, whatever a run in progress has committed, and what the last finished run has changed."""
    try:
        generation = folder.generations.current()
        if generation is None:
            return None
        manifest, plan = generation.manifest(), generation.plan()
    except (IntegrityError, PlanError):  # 'concord verify' explains what is broken
        return None
    seconds = generation.finished
    change = {
        "generation": manifest.generation,
        "finished": datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else None,
        "annotated": manifest.annotated,
        "unchanged": manifest.unchanged,
        "changes": plan.changes,
        "reasons": plan.reasons,
    }
    return collection_counts(manifest), change


def _describe_content(content: Mapping[str, int], change: Mapping[str, Any]) -> list[tuple[str, str]]:
    when = f", {change['finished']}" if change["finished"] else ""
    made = f"{change['annotated']:,} annotated, {change['unchanged']:,} unchanged"
    repeated, unlabelled = content["repeated_names"], content["unlabelled_names"]
    rows = [
        ("collection", f"{describe_content(content)}; {counted(content['dead_letters'], 'dead letter')}"),
        *([("lost pages", f"{lost:,} of documents that were annotated")] if (lost := content["lost_pages"]) else []),
        *([("repeated names", f"{unlabelled:,} of {repeated:,} occurrences without a label")] if repeated else []),
        ("last change", f"generation {change['generation']}{when}: {made}"),
        *([("", change["changes"].description)] if change["generation"] else []),
    ]
    return [*rows, *(("", f"because {reason}") for reason in change["reasons"])]


def _describe_dead_letters(
    selected: Sequence[DeadLetter], counts: Counter[tuple[str, str]], *, output: OutputPath
) -> str:
    rows = [
        (
            f"{short_source(dead_letter.source_uri)}:{dead_letter.position}",
            dead_letter.doc_id,
            dead_letter.stage,
            dead_letter.error,
            dead_letter.attempts,
            shorten(dead_letter.message, MESSAGE_WIDTH, placeholder=" ..."),
        )
        for dead_letter in selected[:SHOWN_DEAD_LETTERS]
    ]
    parts = [table(rows, header=("place", "document", "stage", "error", "attempts", "message"))]
    if len(selected) > len(rows):
        parts.append(f"{len(selected) - len(rows):,} more: narrow down by --stage, --error or --id, or use --json")
    parts += [
        table([(count, stage, error) for (stage, error), count in counts.most_common()]),
        f"{counted(len(selected), 'dead letter')}; to retry after fixing the cause: "
        f"concord annotate INPUT --output {short_path(output)} --retry",
    ]
    return "\n\n".join(parts)


def _written(report: ExportReport | ReviewReport, destination: Path, *, to: ExportForm, lines: Iterator[str]) -> Answer:
    errors = report.errors and report.errors.absolute()
    values = {**asdict(report), "destination": destination.absolute(), "errors": errors}
    text = [*lines]
    if report.errors is not None:
        text.append(
            f"{counted(report.left_out, 'document')} left out because the text has changed since the annotation; see "
            f"{short_path(report.errors)}, and run concord annotate again"
        )
    if to == "label-studio":
        values["labeling_config"] = labeling_config(report.labels)
        text += ["", "Labeling interface:", values["labeling_config"]]
    return Answer(values=values, text="\n".join(text), exit_code=LEFT_OUT if report.errors is not None else 0)


def _export_lines(report: ExportReport, destination: Path) -> Iterator[str]:
    yield (
        f"{short_path(destination)}: {counted(report.documents, 'document')}, {counted(report.sentences, 'sentence')}, "
        f"{counted(report.words, 'word')}, {report.entities:,} entities"
    )
    if report.wordless:
        yield f"{counted(report.wordless, 'document')} without words, which the format cannot represent"
    if report.dead_letters:
        yield f"{counted(report.dead_letters, 'dead letter')} of the collection: never annotated, not exported"
    if report.unknown:
        shown = ", ".join(map(repr, report.unknown[:3])) + (", ..." if len(report.unknown) > 3 else "")
        yield f"{counted(len(report.unknown), 'requested id')} not in the collection: {shown}"


def _review_lines(report: ReviewReport, destination: Path) -> Iterator[str]:
    documents = len({sentence.doc_id for sentence in report.choices})
    types = Counter(sentence.type for sentence in report.choices)
    shares = ", ".join(f"{kind} {number:,}" for kind, number in types.most_common()) or "nothing"
    sentences = counted(len(report.choices), "sentence")
    yield f"{short_path(destination)}: {sentences} of {counted(documents, 'document')}; about {shares}"
    yield ""
    rows = [_queue_row(sentence) for sentence in report.choices[:SHOWN_SENTENCES]]
    yield table(rows, header=("rank", "score", "document", "sentence", "least certain"))
    if len(report.choices) > SHOWN_SENTENCES:
        yield f"... and {len(report.choices) - SHOWN_SENTENCES:,} more, by score"


def _queue_row(sentence: QueuedSentence) -> tuple[object, ...]:
    doc_id = sentence.doc_id if sentence.doc_id.isprintable() else repr(sentence.doc_id)
    return sentence.rank, sentence.score, doc_id, sentence.sent_id, sentence.reason
