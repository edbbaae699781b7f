"""``concord status``, ``verify``, ``errors list``, ``report`` and ``schema``: read an output folder and describe it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from textwrap import shorten
from typing import Any

import pyarrow as pa

from concord.models.errors import ConfigError
from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import IntegrityError, PlanError
from concord.pipeline.output.dead_letters import DeadLetterFilter, read_dead_letters
from concord.pipeline.output.manifest import sum_outcomes
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.schema import OFFSET_UNIT, SCHEMA_VERSION, SCHEMAS
from concord.pipeline.output.shard_stats import backed_off, collection_counts
from concord.pipeline.output.verify import verify as find_faults
from concord.pipeline.plan import Changes
from concord.pipeline.report.html import write_report
from concord.pipeline.storage.output_paths import OutputPath
from concord.pipeline.worker.crash_log import CrashLog
from concord.workflows.annotation.summary import describe_component, describe_content, equation
from concord.workflows.console import Answer, counted, indented, short_path, short_source, table

SHOWN_DEAD_LETTERS = 50
MESSAGE_WIDTH = 100


def status(output: OutputPath) -> Answer:
    """Report what a collection holds, what its last change was, and how much of a run in progress is committed."""
    folder = OutputFolder(output.absolute())
    plan = folder.plan()
    done = folder.finished_shards(plan)
    outcome = sum_outcomes(done.values(), is_new=lambda report: report.generation == plan.generation)
    finished = folder.is_finished(plan)
    steps, attempts = backed_off(done.values()), CrashLog(plan).read_all()
    values: dict[str, Any] = {
        "output": str(folder.output),
        "finished": finished,
        "generation": plan.generation,
        "shards": len(plan.shards) + len(plan.reused),
        "shards_done": len(done),
        "read": plan.read,
        "read_done": sum(report.read for report in done.values()),
        **asdict(outcome),
        **_collection_values(folder),
        "parser": plan.parser.model_dump(),
        "tagger": plan.tagger.model_dump(),
        "stats": folder.stats(),
        "backed_off": {name: step.name.lower() for name, step in steps.items()},
        "trials": {name: attempt.model_dump(mode="json") for name, attempt in attempts.items()},
    }
    rows = [
        ("state", "finished" if finished else "not finished; run the same annotate command to resume it"),
        *_describe_collection(values),
        ("shards", f"{values['shards_done']:,} of {values['shards']:,} committed"),
        ("records", f"{values['read_done']:,} of {values['read']:,} committed"),
        *([] if finished else [("so far", equation({**values, "read": values["read_done"]}))]),
        ("input", plan.config.input),
        ("tagger", describe_component(plan.tagger)),
        ("parser", describe_component(plan.parser)),
    ]
    rate = values["stats"].get("words_per_second", {}).get("run")
    if rate:
        rows.append(("speed", f"{rate:,.0f} words/s"))
    rows += [("backed off", f"shard {name} was done {step.description}") for name, step in steps.items()]
    rows += [("crashes", f"shard {name}: {attempt.description}") for name, attempt in attempts.items()]
    return Answer(values=values, text=table(rows))


def _collection_values(folder: OutputFolder) -> dict[str, Any]:
    """Return what readers see, whatever a run in progress has committed, and what the last finished run has changed."""
    try:
        generation = folder.generations.current()
        found = None if generation is None else (generation.finished, generation.manifest(), generation.plan())
    except (IntegrityError, PlanError):  # 'concord verify' explains what is broken
        found = None
    if found is None:
        return {"collection": None, "last_change": None}
    seconds, manifest, plan = found
    finished = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    change = {
        "generation": manifest.generation,
        "finished": finished if seconds else None,
        "annotated": manifest.annotated,
        "unchanged": manifest.unchanged,
        "changes": plan.changes.model_dump(),
        "reasons": list(plan.reasons),
    }
    return {"collection": collection_counts(manifest), "last_change": change}


def _describe_collection(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    content, change = values["collection"], values["last_change"]
    if content is None:
        return []
    made = f"{change['annotated']:,} annotated, {change['unchanged']:,} unchanged"
    when = f", {change['finished']}" if change["finished"] else ""
    rows = [
        ("collection", f"{describe_content(content)}; {counted(content['dead_letters'], 'dead letter')}"),
        ("last change", f"generation {change['generation']}{when}: {made}"),
    ]
    if change["generation"]:
        rows.append(("", Changes.model_validate(change["changes"]).description))
    return [*rows, *(("", f"because {reason}") for reason in change["reasons"])]


def verify(output: OutputPath, *, deep: bool) -> Answer:
    """Compare a finished run with its manifest: names and sizes, with ``deep`` also hashes and rows.

    The exit code is 1 if anything differs.
    """
    findings = find_faults(output, deep=deep)
    values = {"output": str(output.absolute()), "deep": deep, "findings": [asdict(finding) for finding in findings]}
    if not findings:
        checked = "files, hashes and rows" if deep else "files and sizes"
        return Answer(values=values, text=f"{output}: all {checked} match the manifest")
    rows = [(finding.place, finding.problem) for finding in findings]
    return Answer(values=values, text=f"{table(rows)}\n\n{counted(len(findings), 'finding')} in {output}", exit_code=1)


def list_dead_letters(output: OutputPath, selection: DeadLetterFilter) -> Answer:
    """List the dead letters that match a filter; works while a run is in progress."""
    folder = OutputFolder(output.absolute())
    existing = existing_dead_letters(folder)
    selected = [dead_letter for dead_letter in existing if selection.matches(dead_letter)]
    counts = Counter((dead_letter.stage, dead_letter.error) for dead_letter in selected)
    values = {
        "output": str(folder.output),
        "counts": [{"stage": stage, "error": error, "letters": n} for (stage, error), n in counts.most_common()],
        "letters": [asdict(dead_letter) for dead_letter in selected],
    }
    text = (
        _describe_dead_letters(selected, counts, output=output)
        if selected
        else describe_no_match(existing, output=output)
    )
    return Answer(values=values, text=text)


def existing_dead_letters(folder: OutputFolder) -> list[DeadLetter]:
    """Return all dead letters of the latest plan's committed shards."""
    plan = folder.plan()
    reports = folder.finished_shards(plan)
    return list(read_dead_letters(folder, (reports[shard] for shard in sorted(reports))))


def describe_no_match(existing: Sequence[DeadLetter], *, output: OutputPath) -> str:
    """Describe that a filter matches none of the existing dead letters, and which there are."""
    if not existing:
        return f"{output}: no dead letters"
    counts = Counter((dead_letter.stage, dead_letter.error) for dead_letter in existing)
    kinds = ", ".join(f"{count:,} {stage} {error}" for (stage, error), count in counts.most_common())
    return f"{output}: no dead letter matches; there are {kinds}"


def report(output: OutputPath) -> Answer:
    """Write the HTML report, replacing any existing one, and return its path."""
    path = write_report(output)
    return Answer(values={"report": str(path)}, text=str(path))


def schema(name: str | None) -> Answer:
    """Describe the columns of one table, or of all."""
    if name is not None and name not in SCHEMAS:
        raise ConfigError(f"schema: expected one of {', '.join(SCHEMAS)}, got {name!r}")
    chosen = {key: schema for key, schema in SCHEMAS.items() if name in {None, key}}
    values = {
        "schema_version": SCHEMA_VERSION,
        "offset_unit": OFFSET_UNIT,
        "tables": {key: [_field_values(field) for field in schema] for key, schema in chosen.items()},
    }
    return Answer(values=values, text=_describe_schema(values))


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
        f"concord errors retry {short_path(output)}",
    ]
    return "\n\n".join(parts)


def _field_values(field: pa.Field) -> dict[str, Any]:
    description = (field.metadata or {}).get(b"description", b"").decode()
    return {"name": field.name, "type": str(field.type), "nullable": field.nullable, "description": description}


def _describe_schema(values: Mapping[str, Any]) -> str:
    lines = [f"schema version {values['schema_version']}; offsets are {values['offset_unit']}"]
    for name, fields in values["tables"].items():
        rows = [(field["name"], f"{field['type']}{'?' * field['nullable']}", field["description"]) for field in fields]
        lines += ["", name, indented(table(rows))]
    return "\n".join([*lines, "", "? may be null"])
