"""The dead letters of a collection: which there are, and another try for them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import shorten

from concord.pipeline.annotate import retry as try_again
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.documents import DeadLetter
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.output.dead_letters import DeadLetterFilter, read_dead_letters
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.annotation.annotate import describe
from concord.workflows.annotation.progress import RunProgress
from concord.workflows.console import Answer, counted, short_path, short_source, table
from concord.workflows.jobs import apply_overrides

SHOWN_LETTERS = 50
MESSAGE_WIDTH = 100


def list_letters(output: OutputPath, choice: DeadLetterFilter) -> Answer:
    """List the dead letters that stand; works beside a running run.

    Raises:
        PlanError: when the folder holds no run.
        IntegrityError: when a part cannot be read.
    """
    folder = OutputFolder(output.absolute())
    plan = folder.plan()
    reports = folder.reused_shards(plan) | folder.committed_shards(plan)
    standing = read_dead_letters(folder.output, (reports[shard] for shard in sorted(reports)))
    letters = [letter for letter in standing if choice.matches(letter)]
    counts = Counter((letter.stage, letter.error) for letter in letters)
    return Answer(
        values={
            "output": str(folder.output),
            "counts": [
                {"stage": stage, "error": error, "letters": count} for (stage, error), count in counts.most_common()
            ],
            "letters": [asdict(letter) for letter in letters],
        },
        text=_describe(letters, counts, output=output) if letters else f"{output}: no dead letter",
    )


def retry(output: OutputPath, choice: DeadLetterFilter, *, overrides: Sequence[str]) -> Answer:
    """Try dead letters again with the run's own configuration, and touch nothing else.

    Args:
        overrides: ``key=value`` over that configuration; another executor is fine, another recipe is not.

    Raises:
        ConfigError: naming the key.
        ConcordError: as ``concord.pipeline.annotate.retry`` does.
    """
    plan = OutputFolder(output.absolute()).plan()
    job = plan.config.model_dump(mode="json") | {"output": str(output.absolute())}
    apply_overrides(job, overrides)
    config = AnnotateConfig.from_mapping(job)
    tagger = ResolvedTagger(
        name=plan.tagger.name,
        version=plan.tagger.version,
        digest=plan.tagger.digest,
        folder=Path(plan.tagger_folder),
    )
    with RunProgress() as progress:
        report = try_again(config, choice=choice, tagger=tagger, progress=progress)
    return describe(report, config=config, tagger=tagger)


def _describe(letters: Sequence[DeadLetter], counts: Counter[tuple[str, str]], *, output: OutputPath) -> str:
    rows = [
        (
            f"{short_source(letter.source_uri)}:{letter.position}",
            letter.doc_id,
            letter.stage,
            letter.error,
            letter.attempts,
            shorten(letter.message, MESSAGE_WIDTH, placeholder=" ..."),
        )
        for letter in letters[:SHOWN_LETTERS]
    ]
    parts = [table(rows, header=("place", "document", "stage", "error", "tries", "message"))]
    if len(letters) > len(rows):
        parts.append(f"{len(letters) - len(rows):,} more: choose by --stage, --error and --id, or take --json")
    parts += [
        table([(count, stage, error) for (stage, error), count in counts.most_common()]),
        f"{counted(len(letters), 'dead letter')}; when the cause is mended: concord errors retry {short_path(output)}",
    ]
    return "\n\n".join(parts)
