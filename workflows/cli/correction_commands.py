"""The verbs for what people correct in a collection."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from concord.workflows.cli.options import COLLECTION, OrderedGroup, verb
from concord.workflows.console import Answer

if TYPE_CHECKING:
    from concord.pipeline.storage.output_paths import OutputPath


@click.group(cls=OrderedGroup)
def corrections() -> None:
    """List or import what people corrected in a collection.

    Corrections are kept in corrections.jsonl in the folder of the collection. The next 'concord annotate' writes them
    into the tables, and annotates only documents again whose corrections have changed. See docs/corrections.md.
    """


@verb(example="concord corrections list out/news", group=corrections, name="list")
@click.argument("output", metavar="OUT", type=COLLECTION)
def list_corrections(output: "OutputPath") -> Answer:
    """List corrections, and which of them no longer fit.

    \b
    OUT is the folder of an annotated collection. The states:
      written     in the tables
      waiting     for the next 'concord annotate'
      misfit      left out, with the reason: the text has changed, or the document is gone
      overruled   by a later correction of the same words
      undone      taken back

    --json lists all of them with all fields.
    """
    from concord.workflows.annotation import corrections as work

    return work.list_corrections(output)


@verb(
    example="concord corrections import queues/done.json out/news --as ada",
    group=corrections,
    name="import",
)
@click.argument("source", metavar="FILE", type=click.Path(exists=True, path_type=Path))
@click.argument("output", metavar="OUT", type=COLLECTION)
@click.option("--as", "who", required=True, metavar="NAME", help="Who made the corrections.")
@click.option("--dry-run", is_flag=True, help="Show what would be added, and write nothing.")
def import_corrections(source: Path, output: "OutputPath", *, who: str, dry_run: bool) -> Answer:
    """Import what an annotator changed in an export.

    FILE is an export of OUT, or a review queue from it, that was edited: tasks of Label Studio (its export format
    JSON), a folder of brat, or a .conllu file. Entities that differ from those of the collection become corrections;
    what was left as it was becomes none, and a file may be imported twice.

    Exit code 3 if a part of the file was refused, such as a document whose text has changed; the rest is imported.
    """
    from concord.workflows.annotation import corrections as work

    return work.import_file(source, output, who=who, dry_run=dry_run)
