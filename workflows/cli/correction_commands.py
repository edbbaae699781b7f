"""The verbs for what people correct in a collection."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from concord.workflows.cli.options import (
    COLLECTION,
    CORPUS,
    FOLDER,
    OrderedGroup,
    compute_options,
    force_option,
    labels_option,
    set_option,
    tracking_option,
    verb,
)
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


@verb(example="concord learn out/news --model entities_multi --no-rehearsal --dev examples/train/dev.conllu")
@click.argument("output", metavar="OUT", type=COLLECTION)
@click.option("--model", required=True, help="What learns: models:/NAME@ALIAS, a folder, or a bundled tagger.")
@click.option("--output", "-o", "folder", type=FOLDER, help="Folder of the run.  [default: runs/learn-<name>-<digest>]")
@click.option(
    "--rehearse",
    multiple=True,
    type=CORPUS,
    help="A gold corpus to train on as well; may be repeated.  [default: what the tagger was trained on]",
)
@click.option("--no-rehearsal", is_flag=True, help="Train on the corrected documents alone.")
@click.option(
    "--dev",
    multiple=True,
    type=CORPUS,
    help="A gold corpus that chooses the epoch; may be repeated.  [default: the tagger's own]",
)
@click.option("--calibrate", multiple=True, type=CORPUS, help="A gold corpus, unseen so far, to calibrate on.")
@click.option(
    "--test",
    multiple=True,
    type=CORPUS,
    help="A gold corpus to compare both versions on.  [default: that of the tagger's training, if any]",
)
@labels_option
@click.option(
    "--whole-documents", is_flag=True, help="Who corrected a sentence of a document looked at all of its sentences."
)
@click.option("--name", help="The model that gets the new version.  [default: that of --model]")
@compute_options
@tracking_option
@force_option
@set_option
def learn(
    output: "OutputPath",
    *,
    rehearse: tuple[str, ...],
    no_rehearsal: bool,
    dev: tuple[str, ...],
    test: tuple[str, ...],
    labels: dict[str, str | None],
    **options: Any,
) -> Answer:
    """Train a tagger further on what people corrected.

    OUT is the folder of an annotated collection with corrections. Of the documents in which a correction fits, the
    sentences with a correction are read as gold; all others are context only, since nobody may have looked at them.
    Of a correction that was made on another text or with another tagger, only the corrected words are read. The tagger
    rehearses what it was trained on, as far as its files are unchanged, for a few epochs at a low learning rate. It
    also learns types of entities that it does not know yet; --labels TYPE= leaves one out.

    The new version is calibrated with --calibrate, compared with the old one with --test, and registered, unless it
    finds nothing on dev (exit code 4). 'concord promote' decides whether it becomes the champion. The same command
    continues an interrupted run, and does nothing once it is done. See docs/corrections.md.
    """
    from concord.workflows.corrections.learn import LearnJob, learn_command
    from concord.workflows.corrections.rehearsal import Corpora
    from concord.workflows.job_files import absolute

    if rehearse and no_rehearsal:
        raise click.UsageError("--rehearse and --no-rehearsal exclude each other")
    options["calibrate"] = list(map(absolute, options["calibrate"]))
    corpora = Corpora(
        rehearse=None if no_rehearsal else tuple(map(absolute, rehearse)),
        dev=tuple(map(absolute, dev)),
        test=tuple(map(absolute, test)),
        labels=labels,
    )
    return learn_command(LearnJob(output=output, corpora=corpora, **options))
