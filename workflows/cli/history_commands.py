"""The verbs that list, name and remove the generations of a collection."""

from typing import TYPE_CHECKING

import click

from concord.workflows.cli.options import COLLECTION, POSITIVE, verb
from concord.workflows.console import Answer

if TYPE_CHECKING:
    from concord.pipeline.storage.output_paths import OutputPath

_generation_option = click.option("--generation", type=click.IntRange(min=0), help="Its number.  [default: current]")


@verb(example="concord history out/news --tag paper-2026")
@click.argument("output", type=COLLECTION)
@click.option("--prune", is_flag=True, help="Remove generations that are past their grace period.")
@click.option("--keep", type=POSITIVE, help="With --prune: how many to keep.  [default: output.keep of the run]")
@click.option("--tag", metavar="NAME", help="Give a generation a name; it is kept as long as it has one.")
@click.option("--untag", metavar="NAME", help="Remove a name.")
@_generation_option
def history(
    output: "OutputPath",
    *,
    prune: bool,
    keep: int | None,
    tag: str | None,
    untag: str | None,
    generation: int | None,
) -> Answer:
    """List the generations of a collection, name one, or remove old ones.

    OUTPUT is the folder or URL of an annotated collection. Every run that changes it writes a new generation. The
    one before is kept for output.grace_seconds, so that programs can finish reading it; the newest output.keep and
    those with a name are kept for longer.
    """
    from concord.workflows.annotation import history as work

    if sum(map(bool, (prune, tag, untag))) > 1:
        raise click.UsageError("Expected one of --prune, --tag and --untag.")
    if (keep is not None and not prune) or (generation is not None and not tag):
        raise click.UsageError("--keep belongs to --prune, and --generation to --tag.")
    if prune:
        return work.prune(output, keep=keep)
    if tag:
        return work.tag(output, tag, generation=generation)
    return work.untag(output, untag) if untag else work.history(output)


@verb(example="concord files out/news --table entities")
@click.argument("output", type=COLLECTION)
@click.option("--table", "name", metavar="NAME", help="Only this table.  [default: all five]")
@_generation_option
@click.option("--version", metavar="NAME", help="The generation of this name (concord history --tag).")
def files(output: "OutputPath", *, name: str | None, generation: int | None, version: str | None) -> Answer:
    """List the Parquet files of a collection, one per line.

    OUTPUT is the folder or URL of an annotated collection. The files are those of one generation. A later run
    leaves them where they are for output.grace_seconds.
    """
    from concord.workflows.annotation import history as work

    if generation is not None and version is not None:
        raise click.UsageError("Expected one of --generation and --version.")
    return work.files(output, name=name, generation=generation, version=version)
