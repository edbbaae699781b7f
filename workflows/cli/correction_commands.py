"""The verbs for what people correct in a collection."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from concord.workflows.cli.options import (
    COLLECTION,
    FILE,
    OrderedGroup,
    verb,
)
from concord.workflows.console import Answer

if TYPE_CHECKING:
    from concord.pipeline.storage.output_paths import OutputPath


@click.group(cls=OrderedGroup)
def corrections() -> None:
    """List, import or export what people corrected in a collection.

    Corrections are kept in corrections.jsonl in the folder of the collection. The next 'concord annotate' writes them
    into the tables, and annotates only documents again whose corrections have changed. See docs/corrections.md.
    """


@verb(example="concord corrections list out/news", group=corrections, name="list")
@click.argument("output", metavar="OUT", type=COLLECTION)
def list_corrections(output: "OutputPath") -> Answer:
    """List corrections and flags, and which corrections no longer fit.

    \b
    OUT is the folder of an annotated collection. The states:
      written     in the tables
      waiting     for the next 'concord annotate'
      misfit      left out, with the reason: the text has changed, or the document is gone
      overruled   by a later correction of the same words
      undone      taken back
      flagged     asks for another look at a sentence, with a comment if there is one

    --json lists all of them with all fields.
    """
    from concord.workflows.corrections.corrections import list_command

    return list_command(output)


@verb(example="concord corrections agreement out/news", group=corrections)
@click.argument("output", metavar="OUT", type=COLLECTION)
def agreement(output: "OutputPath") -> Answer:
    """Measure how far people agree who corrected the same sentences.

    For each two people, over the sentences in which both corrected or accepted something: the strict F1 of their
    entities, and Krippendorff's alpha of the labels of words. 'concord view OUT --as NAME' lists where they differ, and
    settles it; that leaves the agreement as it is.
    """
    from concord.workflows.corrections.agreement import agreement_command

    return agreement_command(output)


@verb(example="concord corrections import queues/done.json out/news --as ada", group=corrections, name="import")
@click.argument("source", metavar="FILE", type=click.Path(exists=True, path_type=Path))
@click.argument("output", metavar="OUT", type=COLLECTION)
@click.option("--as", "who", required=True, metavar="NAME", help="Who made the corrections.")
@click.option("--dry-run", is_flag=True, help="Show what would be added, and write nothing.")
@click.option(
    "--accept-drops", is_flag=True, help="Also import documents that lose more than a fifth of their entities."
)
def import_corrections(source: Path, output: "OutputPath", **options: Any) -> Answer:
    """Import what an annotator changed in an export.

    FILE is an export of OUT, or a review queue from it, that was edited: tasks of Label Studio (its export format
    JSON), a folder of brat, or a .conllu file. Entities that differ from those of the collection become corrections;
    what was left as it was, or is missing from the file, becomes none, and a file may be imported twice.

    Exit code 3 if a part of the file was refused, such as a document whose text has changed, or one that would lose
    more than a fifth of its entities, without --accept-drops; the rest is imported.
    """
    from concord.workflows.corrections.corrections import import_command

    return import_command(source, output, **options)


@verb(example="concord corrections export out/news --output corrected.conllu", group=corrections, name="export")
@click.argument("output", metavar="OUT", type=COLLECTION)
@click.option(
    "--output", "-o", "path", required=True, type=FILE, help="The corpus: .conllu, .conllu.gz or .conllu.zst."
)
@click.option(
    "--whole-documents", is_flag=True, help="Who corrected a sentence of a document looked at all of its sentences."
)
def export_corrections(output: "OutputPath", *, path: Path, whole_documents: bool) -> Answer:
    """Write the corrected documents as a corpus for 'concord train'.

    Of the documents in which a correction fits, the sentences with a correction are written as gold. The labels of all
    others are left open, since nobody may have looked at them; they are context only. Of a correction that was made on
    another text or with another tagger, only the corrected words are known.

    'concord train conf/train/corrected.yaml --set start=MODEL' trains a tagger further on it. See docs/corrections.md.
    """
    from concord.workflows.corrections.corrections import export_command

    return export_command(output, path, whole_documents=whole_documents)
