"""The verbs that make, inspect, correct and pass on annotated collections."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from concord._environment import collection_paused
from concord.workflows.cli.options import (
    COLLECTION,
    EXISTING_FILE,
    FILE,
    MODELS,
    OUTPUT,
    POSITIVE,
    OrderedGroup,
    device_option,
    set_option,
    verb,
)
from concord.workflows.console import Answer

if TYPE_CHECKING:
    from concord.pipeline.config import AnnotateConfig
    from concord.pipeline.storage.output_paths import OutputPath


STDIN = "-"
STAGES = ("read", "parse", "tag", "write")
DEFAULT_ADDRESS = "http://127.0.0.1:8265"


@verb(example="concord annotate examples/news --output out/news")
@click.argument("source", metavar="INPUT|JOB.yaml")
@click.option(
    "--output",
    "-o",
    help="Folder or URL of the annotated collection. An unfinished run in it is resumed, a finished one updated.",
)
@click.option("--model", "-m", help=f"{MODELS}.  [default: entities_multi]")
@click.option("--executor", type=click.Choice(["local", "ray"]), help="Where to run.  [default: local]")
@click.option(
    "--actors", type=POSITIVE, help="Number of Ray workers.  [default: 2; with GPUs, by the room on the nodes]"
)
@click.option(
    "--threads",
    type=POSITIVE,
    help="Threads of a worker, fixed with the plan.  [default: OMP_NUM_THREADS, else all cores, at most 4; for ray 1]",
)
@click.option("--keep", type=POSITIVE, help="Number of generations to keep; see concord history.  [default: 1]")
@click.option("--limit", type=POSITIVE, help="Read only the first records, for a try.")
@click.option("--trees/--no-trees", default=None, help="Whether to make dependency trees.  [default: trees]")
@set_option
@click.option(
    "--rehash",
    is_flag=True,
    default=None,
    help="Hash every input file, even if its size and modification time (or ETag) have not changed.",
)
@click.option(
    "--retry",
    is_flag=False,
    flag_value="all",
    type=click.Choice(["all", *STAGES]),
    help="Try dead letters again as well: all (--retry alone, at the end), or those of one stage.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, why, and how long it takes; write nothing.")
def annotate(source: str, *, overrides: tuple[str, ...], dry_run: bool, **options: Any) -> Answer:
    """Annotate a collection of documents.

    INPUT is a file, a folder or a glob pattern, local or a URL (s3://bucket/texts). A YAML file is a job that holds all
    settings, input and output included. With - one text is read from stdin, or records with --set reader.format=jsonl;
    what was read is kept in _run of the output.

    Run the same command again to resume an interrupted run. Over a finished run it annotates only what is new or has
    changed in the input; with another tagger it tags all documents again. Settings that are left out are those of the
    collection, so that INPUT and --output are enough; see docs/runs.md.

    A dead letter stays one until its file changes; --retry tries it again, and counts one more attempt if it fails
    again.

    With --set output.candidates=true the table of entities also holds candidates: spans that must be looked at so that
    few names are missed, as 'concord calibrate --recall' has found. Their source is candidate.

    For a model from the registry (models:/...), counts, rates and the report are recorded in MLflow at the end. If it
    does not answer then, the collection is complete all the same.
    """
    from concord.workflows.annotation.annotate import annotate_collection, preview
    from concord.workflows.annotation.job import resolve_job

    config = _annotate_job(source, options, overrides)
    if source == STDIN and dry_run:
        raise click.UsageError("Expected an input that is kept for --dry-run, got stdin (-).")
    job = resolve_job(config)
    if source == STDIN:
        from concord.workflows.annotation.tag import keep_stdin

        # Its text is the input of the run that it starts, and of no other that is writing.
        with job.folder.writing():
            return annotate_collection(keep_stdin(job))
    return preview(job) if dry_run else annotate_collection(job)


@verb(example='concord tag "Ada met Charles in London."')
@click.argument("text")
@click.option("--model", "-m", help=f"{MODELS}.  [default: entities_multi]")
@device_option
def tag(text: str, *, model: str | None, device: str) -> Answer:
    """Show the entities of one text.

    TEXT is the text itself, or - to read it from stdin. Nothing is written.
    """
    with collection_paused():
        from concord.workflows.annotation.tag import read_stdin, tag_text
        from concord.workflows.console import info

        if text == STDIN:
            text = read_stdin()
        elif os.path.isfile(text):  # noqa: PTH113 - Path.is_file raises an error for a text that is too long for a name
            info(f"The words of the argument are tagged; for the text in the file: concord tag - < {text}")
        return tag_text(text, model=model, device=device)


@verb(example="concord submit conf/annotate/nightly.yaml")
@click.argument("job", metavar="[JOB.yaml]", required=False, type=EXISTING_FILE)
@click.option(
    "--address",
    envvar="RAY_API_SERVER_ADDRESS",
    default=DEFAULT_ADDRESS,
    show_default=True,
    help="Of the cluster's job server; RAY_API_SERVER_ADDRESS sets it too.",
)
@click.option("--id", "submission_id", help="Name of the submission.  [default: job name, date and time]")
@click.option("--python", default="python", show_default=True, help="The Python command on the cluster's head node.")
@click.option("--no-wait", is_flag=True, help="Return as soon as the job is sent.")
@click.option(
    "--stop", metavar="ID", help="Stop a submission; its current shards have executor.drain_seconds to finish."
)
@set_option
def submit(
    job: Path | None, *, address: str, overrides: tuple[str, ...], no_wait: bool, stop: str | None, **options: Any
) -> Answer:
    """Run an annotation job on a Ray cluster.

    Sends the job with the code and the bundled models, follows it to its end and prints its result. Ctrl-C leaves the
    job running; the same command follows it again.

    'ray job list' and 'ray job status' show what the cluster has. See docs/clusters.md, also for Kubernetes.
    """
    from concord.pipeline.executors.ray_setup import resolve_auth_mode

    resolve_auth_mode(address)  # before Ray is imported
    if stop is not None and job is None:
        from concord.workflows.submit import stop_job

        return stop_job(stop, address=address)
    if job is None or stop is not None:
        raise click.UsageError("Expected either JOB.yaml or --stop ID.")
    config = _annotate_job(str(job), {"executor": "ray"}, overrides)
    from concord.workflows.submit import submit_job

    return submit_job(config, address=address, name=job.stem, wait=not no_wait, **options)


@verb(example="concord status out/news")
@click.argument("output", type=COLLECTION)
def status(output: "OutputPath") -> Answer:
    """Show how far a run is.

    OUTPUT is the folder or URL of an annotated collection. The run may be in progress.
    """
    from concord.workflows.annotation import inspection

    return inspection.status(output)


@verb(example="concord verify out/news")
@click.argument("output", type=COLLECTION)
@click.option("--shallow", is_flag=True, help="Check names and sizes only; do not read the files.")
def verify(output: "OutputPath", *, shallow: bool) -> Answer:
    """Check the files of a finished run.

    OUTPUT is the folder or URL of an annotated collection. Every file, hash and row count is compared with the
    run's manifest. Exit code 1 if anything differs.
    """
    from concord.workflows.annotation import inspection

    return inspection.verify(output, deep=not shallow)


AMOUNT = click.FloatRange(min=0)
generation_option = click.option("--generation", type=click.IntRange(min=0), help="Its number.  [default: current]")


@verb(example="concord history out/news --tag paper-2026")
@click.argument("output", type=COLLECTION)
@click.option("--prune", is_flag=True, help="Remove generations that are past their grace period.")
@click.option("--keep", type=POSITIVE, help="With --prune: how many to keep.  [default: output.keep of the run]")
@click.option("--tag", metavar="NAME", help="Give a generation a name; it is kept as long as it has one.")
@click.option("--untag", metavar="NAME", help="Remove a name.")
@generation_option
@click.option("--check", is_flag=True, help="Exit with 5 if the last run has moved a share.")
@click.option("--amount", type=AMOUNT, help="With --check: the relative change allowed.  [default: 0.2]")
def history(output: "OutputPath", *, check: bool, amount: float | None, **options: Any) -> Answer:
    """List the generations of a collection, compare the last two, name one, or remove old ones.

    OUTPUT is the folder or URL of an annotated collection. Every run that changes it writes a new generation. The
    one before is kept for output.grace_seconds, so that programs can finish reading it; the newest output.keep and
    those with a name are kept for longer.

    The list has what each run took and found, with removed generations. --check compares entities of each type per
    1,000 words, dead letters per document, and what the mean confidence lacks of 1. One has moved if it changed by
    more than --amount, and by more than chance would. The names that moved it most are printed. After a run that has
    changed nothing, nothing has moved.
    """
    from concord.workflows.annotation import history as work

    prune, keep, tag, untag, generation = (options[name] for name in ("prune", "keep", "tag", "untag", "generation"))
    if sum(map(bool, (prune, tag, untag, check))) > 1:
        raise click.UsageError("Expected one of --prune, --tag, --untag and --check.")
    if (keep is not None and not prune) or (generation is not None and not tag) or (amount is not None and not check):
        raise click.UsageError("--keep belongs to --prune, --generation to --tag, and --amount to --check.")
    if check:
        return work.check(output, amount=0.2 if amount is None else amount)
    if prune:
        return work.prune(output, keep=keep)
    if tag:
        return work.tag(output, tag, generation=generation)
    return work.untag(output, untag) if untag else work.history(output)


@verb(example="concord files out/news --table entities")
@click.argument("output", type=COLLECTION)
@click.option("--table", "name", metavar="NAME", help="Only this table.  [default: all six]")
@generation_option
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


@verb(example="concord diff out/monday out/tuesday")
@click.argument("first", metavar="A", type=COLLECTION)
@click.argument("second", metavar="B", type=COLLECTION)
@click.option(
    "--top", "listed", type=click.IntRange(min=0), default=20, show_default=True, help="How many differences to list."
)
def diff(first: "OutputPath", second: "OutputPath", **options: Any) -> Answer:
    """Show which documents and entities differ between two annotations.

    A and B are the outputs of finished runs, or two generations of one. Documents are matched by id. Where the text is
    the same, entities are compared by offsets: they have the same or different labels, or are only in A or only in B.
    An entity with other boundaries counts as one that is only in A and one that is only in B.

    The most certain differences come first: a difference is as certain as the lower of its two probabilities.

    The exit code is 0 whether or not anything differs.
    """
    from concord.workflows.diff import diff_collections

    return diff_collections(first, second, **options)


@verb(example="concord errors out/news --stage read")
@click.argument("output", type=COLLECTION)
@click.option("--stage", "stages", multiple=True, type=click.Choice(STAGES), help="Only of this stage.")
@click.option("--error", "errors", multiple=True, metavar="NAME", help="Only with this error code, as in the list.")
@click.option("--id", "ids", multiple=True, help="Only of this document.")
def errors(output: "OutputPath", **fields: tuple[str, ...]) -> Answer:
    """List dead letters with place, stage, error, attempts and message.

    OUTPUT is the folder or URL of an annotated collection. The run may be in progress.

    A dead letter is a record that could not be read or annotated. It is kept until its file changes, until a new
    tagger, parser or setting requires a full run, or until 'concord annotate --retry' tries it again.

    Options may be repeated. --json lists all of them with their complete messages.
    """
    from concord.workflows.annotation import inspection

    return inspection.list_dead_letters(output, **fields)


@verb(example="concord report out/news")
@click.argument("output", type=COLLECTION)
def report(output: "OutputPath") -> Answer:
    """Write the HTML report of a finished run again.

    OUTPUT is the folder or URL of an annotated collection.
    """
    from concord.workflows.annotation import inspection

    return inspection.report(output)


browser_option = click.option("--no-browser", is_flag=True, help="Only print the address.")


@verb(example="concord view out/news --as ada")
@click.argument("output", metavar="OUT", type=COLLECTION)
@click.option("--port", type=click.IntRange(0, 65535), help="Port on 127.0.0.1.  [default: 7391, or any free one]")
@browser_option
@click.option("--as", "who", metavar="NAME", help="Who corrects.  [default: nobody, read only]")
@click.option("--fetch", is_flag=True, help="Read texts that are not stored from inputs behind URLs, by requests.")
@click.option(
    "--host",
    metavar="NAME[:PORT]",
    multiple=True,
    help="Also answer under this name, of a proxy or 'ssh -L'; an IP address is listened on.  [default: 127.0.0.1]",
)
@click.option(
    "--base-path", default="", metavar="PATH", help="Path below which a proxy shows the pages, such as /news."
)
def view(output: "OutputPath", *, no_browser: bool, **options: Any) -> Answer:
    """Read, search and correct a collection in the browser.

    OUT is the folder or URL of an annotated collection; the run may be in progress. Without --as nothing in it is
    changed. With it, corrections are appended to its corrections.jsonl; the tables stay as they are until the next
    'concord annotate'. See docs/corrections.md.

    The pages are served on 127.0.0.1 alone unless --host has another address, to those who know the token in the
    printed address, until Ctrl-C. They request nothing from the network, but for --fetch. The index for searching is
    kept in CONCORD_CACHE, or ~/.cache/concord.
    """
    from concord.workflows.view.server import serve

    return serve(output, browser=not no_browser, **options)


@verb(example="concord export out/news --to conllu --output exports/news.conllu.zst")
@click.argument("output", metavar="OUT", type=COLLECTION)
@click.option(
    "--to",
    required=True,
    type=click.Choice(["conllu", "jsonl", "csv", "brat", "label-studio", "docbin", "spacy-jsonl", "hf"]),
    help="The format.",
)
@click.option(
    "--output", "-o", "destination", required=True, type=click.Path(path_type=Path), help="A new file or folder."
)
@click.option("--ids", type=EXISTING_FILE, help="Only these documents: a file with one id per line, or an export.")
@click.option("--limit", type=POSITIVE, help="Only the first documents.")
def export(output: "OutputPath", **options: Any) -> Answer:
    """Convert a collection for other tools.

    OUT is the folder or URL of an annotated collection.

    brat, spaCy's DocBin and the dataset of --to hf are folders; the others are a single file, which may end in .gz or
    .zst. Either appears under its name only when complete.

    CoNLL-U, CSV (a row for each entity) and hf need no raw text. For the others it is read again from the input and
    verified by hash; documents that have changed since are left out and listed beside the export, with exit code 3.
    """
    from concord.workflows.annotation.inspection import write_export

    return write_export(output, **options)


@verb(example="concord review out/news --output queues/first.json --size 200 --per-type 80")
@click.argument("output", metavar="OUT", type=COLLECTION)
@click.option(
    "--output", "-o", "destination", type=click.Path(path_type=Path), help="A new file or folder. Not with --as."
)
@click.option("--as", "who", metavar="NAME", help="Who reviews: opens the queue in the browser, to correct it there.")
@browser_option
@click.option("--size", type=POSITIVE, default=200, show_default=True, help="Number of sentences.")
@click.option(
    "--to", type=click.Choice(["label-studio", "jsonl", "brat"]), help="Format of the file.  [default: label-studio]"
)
@click.option("--per-document", type=POSITIVE, default=5, show_default=True, help="At most this many per document.")
@click.option("--per-type", type=POSITIVE, help="At most this many per entity type (O: no entity).")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides between equal scores.")
@click.option(
    "--done", multiple=True, type=EXISTING_FILE, help="Skip the documents in this file: an earlier queue, or ids."
)
def review(
    output: "OutputPath",
    *,
    destination: Path | None,
    who: str | None,
    no_browser: bool,
    to: Literal["label-studio", "jsonl", "brat"] | None,
    done: tuple[Path, ...],
    **quotas: Any,
) -> Answer:
    """Select the least certain sentences for human review.

    OUT is the folder or URL of an annotated collection.

    Sentences are ranked by how unsure the tagger is of an entity, or of a word outside any entity, and come with score
    and reason. Every tenth is another: one with a name that people called something else in their corrections, or that
    has another label elsewhere, since a tagger may be sure and wrong. The same command on the same collection, with the
    same corrections, selects the same sentences.

    With --output they are written for another tool; with --as NAME they are walked through in the browser, where
    'concord view OUT --as NAME' corrects them.
    """
    from concord.pipeline.exchange.review_queue import Quotas

    if (destination is None) == (who is None):
        raise click.UsageError("expected either --output FILE, to write the queue, or --as NAME, to correct it")
    if destination is None:
        from concord.workflows.view.server import serve

        if done or to is not None:
            raise click.UsageError("--done and --to go with --output; the browser shows what is done")
        return serve(output, port=None, browser=not no_browser, who=who, quotas=Quotas(**quotas))
    from concord.workflows.annotation.inspection import write_review

    return write_review(output, destination, to=to or "label-studio", quotas=Quotas(**quotas), done=done)


@verb(example="concord schema tokens")
@click.argument("table", required=False)
def schema(table: str | None) -> Answer:
    """Describe the columns of the output tables.

    TABLE is documents, sentences, tokens, entities, errors or names; all of them if omitted.
    """
    from concord.workflows.annotation import inspection

    return inspection.schema(table)


@verb(example="concord doctor --output /data/out")
@click.option("--output", "-o", type=OUTPUT, default="out", show_default=True, help="Folder or URL of future runs.")
def doctor(output: "OutputPath") -> Answer:
    """Check whether this machine can run Concord."""
    from concord.workflows.annotation.doctor import check_machine

    return check_machine(output)


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
    from concord.workflows.corrections import list_command

    return list_command(output)


@verb(example="concord corrections agreement out/news", group=corrections)
@click.argument("output", metavar="OUT", type=COLLECTION)
def agreement(output: "OutputPath") -> Answer:
    """Measure how far people agree who corrected the same sentences.

    For each two people, over the sentences in which both corrected or accepted something: the strict F1 of their
    entities, and Krippendorff's alpha of the labels of words. 'concord view OUT --as NAME' lists where they differ, and
    settles it; that leaves the agreement as it is.
    """
    from concord.workflows.corrections import agreement_command

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
    from concord.workflows.corrections import import_command

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
    from concord.workflows.corrections import export_command

    return export_command(output, path, whole_documents=whole_documents)


def _annotate_job(source: str, options: Mapping[str, Any], overrides: tuple[str, ...]) -> "AnnotateConfig":
    from concord.workflows.annotation.job import JOB_SUFFIXES, job_values, read_annotate_job

    values = job_values(options)
    if Path(source).suffix in JOB_SUFFIXES:
        return read_annotate_job(Path(source), values=values, overrides=overrides)
    if "output.path" not in values and not any(
        override.startswith(("output=", "output.path=")) for override in overrides
    ):
        raise click.UsageError("Missing option '--output': the folder or URL of the annotated collection.")
    return read_annotate_job(None, values={"input": source, **values}, overrides=overrides)
