"""``concord errors list``: the dead letters of a collection."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from textwrap import shorten

from concord.pipeline.documents import DeadLetter
from concord.pipeline.output.dead_letters import DeadLetterFilter, read_dead_letters
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.console import Answer, counted, short_path, short_source, table

SHOWN_DEAD_LETTERS = 50
MESSAGE_WIDTH = 100


def list_dead_letters(output: OutputPath, selection: DeadLetterFilter) -> Answer:
    """List the dead letters that match a filter; works while a run is in progress.

    Raises:
        PlanError: when the folder holds no run.
        IntegrityError: when a part cannot be read.
    """
    folder = OutputFolder(output.absolute())
    plan = folder.plan()
    reports = folder.reused_shards(plan) | folder.committed_shards(plan)
    existing = read_dead_letters(folder.output, (reports[shard] for shard in sorted(reports)))
    found = [dead_letter for dead_letter in existing if selection.matches(dead_letter)]
    counts = Counter((dead_letter.stage, dead_letter.error) for dead_letter in found)
    return Answer(
        values={
            "output": str(folder.output),
            "counts": [
                {"stage": stage, "error": error, "letters": count} for (stage, error), count in counts.most_common()
            ],
            "letters": [asdict(dead_letter) for dead_letter in found],
        },
        text=_describe(found, counts, output=output) if found else f"{output}: no dead letters",
    )


def _describe(found: Sequence[DeadLetter], counts: Counter[tuple[str, str]], *, output: OutputPath) -> str:
    rows = [
        (
            f"{short_source(dead_letter.source_uri)}:{dead_letter.position}",
            dead_letter.doc_id,
            dead_letter.stage,
            dead_letter.error,
            dead_letter.attempts,
            shorten(dead_letter.message, MESSAGE_WIDTH, placeholder=" ..."),
        )
        for dead_letter in found[:SHOWN_DEAD_LETTERS]
    ]
    parts = [table(rows, header=("place", "document", "stage", "error", "attempts", "message"))]
    if len(found) > len(rows):
        parts.append(f"{len(found) - len(rows):,} more: narrow down by --stage, --error or --id, or use --json")
    parts += [
        table([(count, stage, error) for (stage, error), count in counts.most_common()]),
        f"{counted(len(found), 'dead letter')}; to retry after fixing the cause: "
        f"concord errors retry {short_path(output)}",
    ]
    return "\n\n".join(parts)
