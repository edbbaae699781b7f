"""The command line. Nothing but click is imported before a command runs, so that help comes at once."""

import functools
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from typing_extensions import override

from concord.workflows.console import Answer, emit, report_errors, set_environment

if TYPE_CHECKING:
    from concord.pipeline.config import AnnotateConfig
    from concord.pipeline.storage.output_paths import OutputPath

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
GUARDED_ALIASES = ("champion", "previous")
FOLDER = click.Path(path_type=Path, file_okay=False)
EXISTING_FOLDER = click.Path(path_type=Path, file_okay=False, exists=True)
EXISTING_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


class _Collection(click.Path):
    """An annotated collection: a folder that is there, or a URL of S3."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).startswith("s3://"):
            return super().convert(value, param, ctx)
        from concord.pipeline.errors import InputError
        from concord.pipeline.storage.output_paths import output_path
        from concord.pipeline.storage.urls import check_url

        try:
            check_url(value)
        except InputError as error:
            self.fail(str(error), param, ctx)
        return output_path(value)


COLLECTION = _Collection(path_type=Path, file_okay=False, exists=True)

set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Set a key of the job; may be given often."
)
data_option = click.option(
    "--data", "-d", required=True, multiple=True, type=EXISTING_FILE, help="A gold corpus: .conllu, .conll."
)
labels_option = click.option(
    "--labels", default="", metavar="GPE=LOC,MISC=", help="Map types of the corpus; nothing drops one."
)
column_option = click.option(
    "--label-column", metavar="NAME", help="CoNLL-U: upos, xpos or a key of MISC; CoNLL: its number."
)
device_option = click.option("--device", type=click.Choice(["cpu", "cuda", "auto"]), default="cpu", show_default=True)


class _InOrder(click.Group):
    """A group that lists its commands in the order of work."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_InOrder, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="concord-annotate")
def main() -> None:
    """Annotate document collections: sentences, trees, and names whose labels agree across a document.

    Results go to stdout, progress and warnings to stderr. Exit codes: 0 done; 1 failure; 2 usage, configuration or
    model; 3 more dead letters than allowed; 4 promotion refused or race lost; 75 no space or store, try again; 130
    interrupted; 143 terminated.
    """
    set_environment()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")


def verb(
    *, example: str, group: click.Group = main, name: str | None = None
) -> Callable[[Callable[..., Answer]], click.Command]:
    """Make a function a command: it gives an answer, and errors that can be explained are.

    Args:
        name: the function's own if None.
    """

    def make(work: Callable[..., Answer]) -> click.Command:
        @functools.wraps(work)
        def call(*, as_json: bool, **arguments: Any) -> None:
            with report_errors(as_json=as_json):
                answer = work(**arguments)
            emit(answer, as_json=as_json)

        option = click.option("--json", "as_json", is_flag=True, help="Write one JSON object to stdout.")
        return group.command(name, epilog=f"\b\nExample:\n  {example}")(option(call))

    return make


@verb(example="concord annotate examples/news --output out/news")
@click.argument("source", metavar="INPUT|JOB.yaml")
@click.option("--output", "-o", help="Folder or s3:// of the annotated collection; an unfinished run in it is resumed.")
@click.option("--model", "-m", help="A folder, an embedded tagger, or models:/NAME@ALIAS.  [default: entities_en]")
@click.option("--executor", type=click.Choice(["local", "ray"]), help="Where to work.  [default: local]")
@click.option("--actors", type=click.IntRange(min=1), help="Workers of the Ray executor.  [default: 2]")
@click.option("--limit", type=click.IntRange(min=1), help="Take only the first so many records.")
@set_option
@click.option(
    "--rehash", is_flag=True, default=None, help="Hash files again whose size and time or etag are as before."
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, why and how long it takes; write nothing.")
def annotate(source: str, *, overrides: tuple[str, ...], dry_run: bool, **options: Any) -> Answer:
    """Annotate a collection.

    INPUT is a file, a folder or a pattern, as a path or a URL (s3://bucket/texts); a YAML file is a job with all its
    settings.

    The same command resumes a run that was interrupted. Over a finished one it annotates what is new or changed in the
    input, tags all again where the tagger is another, and leaves the rest as it is.

    When a run with a model of the registry (models:/...) has ended, its counts, rates and report go to MLflow; if
    MLflow is down then, 'concord registry sync' sends them later.
    """
    config = _annotate_job(source, options, overrides)
    from concord.workflows.annotation import annotate as workflow

    return workflow.preview(config) if dry_run else workflow.run(config)


@verb(example="concord prepare my/train.conll my/dev.conll my/test.conll --output corpora/mine")
@click.argument("inputs", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--output", "-o", type=FOLDER, help="Folder of the clean corpora; without it, or -, only look.")
@click.option("--format", type=click.Choice(["conll", "conllu", "conll2012", "semeval2010"]), help="[default: by name]")
@click.option("--word-column", type=click.IntRange(min=1), default=1, show_default=True, help="Of conll, from 1 on.")
@click.option("--tag-column", type=click.IntRange(min=1), help="Of conll, from 1 on: parts of speech.")
@column_option
@click.option(
    "--label-scheme",
    type=click.Choice(["auto", "BIO2", "IOB1", "BIOES", "TOKENS"]),
    default="auto",
    show_default=True,
    help="Of the input; auto tells it by the training corpus.",
)
@click.option("--to", type=click.Choice(["conll", "conllu"]), help="[default: conllu with trees or tags, else conll]")
@click.option("--fix", is_flag=True, help="Repair what is sure: a name that begins with I- begins with B-.")
def prepare(
    inputs: tuple[Path, ...],
    *,
    output: Path | None,
    label_column: str | None,
    to: Literal["conll", "conllu"] | None,
    fix: bool,
    **options: Any,
) -> Answer:
    """Look gold corpora over, and write them clean.

    INPUTS are the splits; a folder stands for the corpus files in it. Faults come with file and line; names and
    sentences are compared with the corpus named train, else the first. Labels are written in BIO2. Exit code 1 when a
    fault is left; nothing is written then.
    """
    from concord.pipeline.corpora.corpus_format import GoldFormat
    from concord.workflows.training import prepare as workflow

    job = workflow.PrepareJob(
        inputs=inputs,
        form=GoldFormat(label_column=_column(label_column), **options),
        output=None if output == Path("-") else output,
        to=to,
        fix=fix,
    )
    return workflow.run(job)


@verb(example="concord parse examples/train/train.conllu --output runs/train.parsed.conllu.zst")
@click.argument("corpus", type=EXISTING_FILE)
@click.option("--output", "-o", required=True, help="The corpus with trees: .conllu, .conllu.gz or .conllu.zst.")
@set_option
def parse(corpus: Path, *, output: str, overrides: tuple[str, ...]) -> Answer:
    """Give a gold corpus the parser's trees.

    A tagger that reads trees should learn from those of the parser that it will work with.

    Words and labels of the corpus stay as they are. A corpus that has these trees already is left alone.
    """
    from concord.workflows.jobs import read_parse_job
    from concord.workflows.training import parse_corpus as workflow

    return workflow.run(read_parse_job({"input": str(corpus), "output": output}, overrides=overrides))


def _free_alias(_context: click.Context, _option: click.Parameter, alias: str | None) -> str | None:
    """Refuse the aliases that only move with a line in the ledger."""
    if alias in GUARDED_ALIASES:
        raise click.BadParameter(
            f"{alias!r} is moved by 'concord promote' and 'concord rollback' only, which ask the gate and write the "
            "ledger; promote the version afterwards, or give another alias"
        )
    return alias


@verb(example="concord train conf/train/bilstm_crf.yaml --set fit.epochs=3")
@click.argument("job", metavar="CONF.yaml", type=EXISTING_FILE)
@click.option("--profile", default="small", show_default=True, help="Which profile of the file.")
@click.option("--output", "-o", type=FOLDER, help="Folder of checkpoints and bundle.  [default: runs/<job>]")
@click.option("--resume", is_flag=True, help="Go on with the training in the folder.")
@click.option("--alias", callback=_free_alias, help="Point this alias of the registry at the new version.")
@click.option("--device", type=click.Choice(["cpu", "cuda", "auto"]), default="cpu", show_default=True)
@click.option("--no-tracking", is_flag=True, help="Tell MLflow nothing and register nothing.")
@set_option
def train(
    job: Path,
    *,
    profile: str,
    output: Path | None,
    resume: bool,
    alias: str | None,
    device: str,
    no_tracking: bool,
    overrides: tuple[str, ...],
) -> Answer:
    """Train a tagger and register it.

    Parameters, scores of every epoch, tables, curves and the bundle go to MLflow. If MLflow is down when the training
    ends, 'concord registry sync' sends them later.

    Keys of the profile are set by model.KEY and fit.KEY.

    Any tagger also learns labels of single words, such as parts of speech: --set model.scheme=TOKENS, and for CoNLL-U
    --set data.label_column=upos (or xpos, or a key of MISC).
    """
    from concord.workflows.jobs import read_train_job
    from concord.workflows.training import train as workflow

    options = workflow.TrainOptions(folder=output, resume=resume, tracked=not no_tracking, alias=alias, device=device)
    return workflow.run(read_train_job(job, profile=profile, overrides=overrides), options)


@verb(example="concord evaluate entities_en --data examples/train/dev.conllu")
@click.argument("model")
@data_option
@labels_option
@column_option
@click.option("--train", multiple=True, type=EXISTING_FILE, help="A training corpus: says which names are unseen.")
@device_option
@click.option("--samples", type=click.IntRange(min=1), help="Weight samples.  [default: the tagger's own]")
@click.option("--threshold", type=float, help="Nats above which stage two decides.  [default: the tagger's own]")
def evaluate(
    model: str,
    *,
    data: tuple[Path, ...],
    labels: str,
    label_column: str | None,
    train: tuple[Path, ...],
    device: str,
    samples: int | None,
    threshold: float | None,
) -> Answer:
    """Score a tagger on gold corpora.

    Strict spans by type, by length, and by whether --train held the name; drafts against final labels; recurring
    names; uncertainty; speed. For a tagger of token labels: accuracy, whole and by label.
    """
    from concord.pipeline.corpora.corpus_format import GoldFormat
    from concord.workflows.registry.resolve_tagger import find_tagger
    from concord.workflows.training import evaluate as workflow

    job = workflow.EvaluateJob(
        folder=find_tagger(model).folder,
        data=[str(path) for path in data],
        labels=_label_map(labels),
        form=GoldFormat(label_column=_column(label_column)),
        train=[str(path) for path in train],
        device=device,
        samples=samples,
        threshold=threshold,
    )
    return workflow.run(job)


@verb(
    example="concord compare entities_en_small entities_en --data examples/train/dev.conllu --output out/compare.html"
)
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@data_option
@click.option("--slice", "slices", multiple=True, metavar="NAME=FIELD:PATTERN", help="A part to test by itself.")
@click.option("--train", multiple=True, type=EXISTING_FILE, help="A training corpus: says which names are seen.")
@labels_option
@column_option
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="Chance of one false alarm or more.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=10_000, show_default=True, help="Of the randomisation.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="Page to write, as HTML.")
@device_option
def compare(
    first: str,
    second: str,
    *,
    data: tuple[Path, ...],
    slices: tuple[str, ...],
    train: tuple[Path, ...],
    labels: str,
    label_column: str | None,
    alpha: float,
    rounds: int,
    seed: int,
    output: Path | None,
    device: str,
) -> Answer:
    """Test whether tagger B is better than tagger A.

    Both label the corpora; their scores are compared document by document (sentence by sentence where a corpus has no
    documents): in all, by entity type, for recurring names, and for each --slice. p is of a paired randomisation test,
    Holm's correction is over all lines, intervals are of a bootstrap, and each line says which difference this data
    could have shown. --labels maps types of the corpora and of both taggers.

    
    Slices:
      --slice 'long=sentence_words>30'   also mention_words, document_words; also >= < <= ==
      --slice 'news=doc_id:news*'        documents by name; * and ? as in a shell
      --slice 'fiction=genre:fiction'    any comment '# meta::genre = fiction' at the head of a CoNLL-U document
      --slice 'new=name:unseen'          names that --train does not hold; name:seen for the others
      --slice 'people=type:PER'
    """
    from concord.pipeline.corpora.corpus_format import GoldFormat
    from concord.workflows.comparison import command as workflow
    from concord.workflows.comparison.compare import CompareJob
    from concord.workflows.comparison.paired_tests import Procedure
    from concord.workflows.comparison.slices import parse_slice
    from concord.workflows.registry.resolve_tagger import find_tagger

    job = CompareJob(
        first=find_tagger(first),
        second=find_tagger(second),
        data=[str(path) for path in data],
        slices=[parse_slice(text) for text in slices],
        labels=_label_map(labels),
        form=GoldFormat(label_column=_column(label_column)),
        train=[str(path) for path in train],
        procedure=Procedure(alpha=alpha, rounds=rounds, seed=seed),
        device=device,
    )
    return workflow.run(job, output=output)


@verb(example="concord calibrate runs/mine/bundle --data my/calibration.conllu --test my/test.conllu")
@click.argument("model")
@data_option
@click.option("--output", "-o", type=FOLDER, help="Folder of a calibrated copy.  [default: the bundle itself]")
@labels_option
@column_option
@click.option("--test", multiple=True, type=EXISTING_FILE, help="A gold corpus on which the result is only measured.")
@click.option(
    "--tokens",
    type=click.Choice(["temperature", "isotonic", "auto"]),
    default="temperature",
    show_default=True,
    help="How words are calibrated; auto chooses by cross-validation.",
)
@click.option(
    "--entities",
    type=click.Choice(["platt", "isotonic", "auto", "none"]),
    default="auto",
    show_default=True,
    help="How entities are; none leaves them as they are.",
)
@click.option("--allow-overlap", is_flag=True, help="Take documents that the tagger has seen; it is written down.")
@click.option("--picture", type=click.Path(path_type=Path), help="[default: reliability.png in the bundle]")
@device_option
def calibrate(
    model: str,
    *,
    data: tuple[Path, ...],
    labels: str,
    label_column: str | None,
    test: tuple[Path, ...],
    **options: Any,
) -> Answer:
    """Make a tagger's probabilities say how often it is right.

    --data must be documents that it neither learned from nor that chose its checkpoint or threshold. Labels and
    uncertainty stay as they are; ner_prob and confidence change, and with them the tagger's digest.

    Prints the expected calibration error of words and entities before and after, always on documents that the fit has
    not seen: by cross-validation on --data, and on --test.
    """
    from concord.pipeline.corpora.corpus_format import GoldFormat
    from concord.workflows.training import calibrate as workflow

    job = workflow.CalibrateJob(
        model=model,
        data=[str(path) for path in data],
        labels=_label_map(labels),
        form=GoldFormat(label_column=_column(label_column)),
        test=[str(path) for path in test],
        **options,
    )
    return workflow.run(job)


@verb(example="concord figures entities_en --data examples/train/dev.conllu --output out/figures")
@click.argument("model")
@data_option
@click.option("--output", "-o", required=True, type=FOLDER, help="Folder of the pictures and of figures.json.")
@labels_option
@column_option
@click.option(
    "--sentence",
    "sentences",
    multiple=True,
    type=click.IntRange(min=1),
    help="Number of a sentence in the corpus whose attention is drawn.  [default: the most uncertain two]",
)
@click.option("--picture", type=click.Choice(["png", "svg"]), default="png", show_default=True)
@device_option
def figures(
    model: str,
    *,
    data: tuple[Path, ...],
    output: Path,
    labels: str,
    label_column: str | None,
    sentences: tuple[int, ...],
    picture: Literal["png", "svg"],
    device: str,
) -> Answer:
    """Draw the papers' figures of a tagger.

    F1 against threshold, weight samples and memory; F1 and speed against sentence length; uncertainty of right and
    wrong drafts; attention. What makes no sense for the tagger is left out and named.
    """
    from concord.pipeline.corpora.corpus_format import GoldFormat
    from concord.workflows.registry.resolve_tagger import find_tagger
    from concord.workflows.training import figures as workflow

    job = workflow.FiguresJob(
        folder=find_tagger(model).folder,
        data=[str(path) for path in data],
        output=output,
        labels=_label_map(labels),
        form=GoldFormat(label_column=_column(label_column)),
        sentences=sentences,
        picture=picture,
        device=device,
    )
    return workflow.run(job)


@verb(example="concord promote bilstm_crf 3 --gate conf/promote.yaml")
@click.argument("name")
@click.argument("version", type=click.IntRange(min=1))
@click.option(
    "--gate",
    type=EXISTING_FILE,
    default=Path("conf/promote.yaml"),
    show_default=True,
    help="What the version must show, and on which corpora.",
)
@click.option("--force", "forced", is_flag=True, help="Move the champion even if the gate does not hold.")
@click.option("--reason", metavar="TEXT", help="Why, for the ledger; --force needs one.")
@device_option
def promote(name: str, *, version: int, gate: Path, forced: bool, reason: str | None, device: str) -> Answer:
    """Make a version the champion if the gate holds.

    The version is compared with the champion on the promotion set: better beyond chance, by enough, no slice worse,
    fast enough, its files those that were registered, and none of the documents seen in its making. Every condition is
    reported; exit code 4 when one fails, or when somebody else has moved the champion in the meantime.

    The former champion stays as the alias previous, and the ledger gets a line: concord registry history NAME.
    """
    from concord.workflows.promotion import promote as workflow

    return workflow.run(name, version, workflow.PromoteOptions(gate=gate, forced=forced, reason=reason, device=device))


@verb(example="concord rollback bilstm_crf --reason 'misses company names since Monday'")
@click.argument("name")
@click.option("--reason", metavar="TEXT", help="Why, for the ledger.")
def rollback(name: str, *, reason: str | None) -> Answer:
    """Make the previous champion the champion again.

    The two change places. The ledger gets a line; exit code 4 when somebody else has moved the champion meanwhile.
    """
    from concord.workflows.promotion import promote as workflow

    return workflow.rollback(name, reason=reason)


@verb(example="concord submit conf/annotate/nightly.yaml")
@click.argument("job", metavar="[JOB.yaml]", required=False, type=EXISTING_FILE)
@click.option("--address", envvar="RAY_API_SERVER_ADDRESS", default=DEFAULT_ADDRESS, show_default=True)
@click.option("--id", "submission_id", help="Name the submission.  [default: job, day and content]")
@click.option("--python", default="python", show_default=True, help="The Python of the cluster's head node.")
@click.option("--no-wait", is_flag=True, help="Leave as soon as the job is sent.")
@click.option("--stop", metavar="ID", help="End a submission when its workers have done the shards they are at.")
@click.option("--print", "printed", type=click.Choice(["rayjob", "cronjob"]), help="Write manifests; send nothing.")
@click.option(
    "--kubernetes",
    # Not EXISTING_FILE, which would have the default exist wherever a job is sent from.
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("conf/kubernetes.yaml"),
    show_default=True,
    help="For --print: image, volumes, workers, schedule.",
)
@set_option
def submit(
    job: Path | None,
    *,
    address: str,
    overrides: tuple[str, ...],
    no_wait: bool,
    stop: str | None,
    printed: Literal["rayjob", "cronjob"] | None,
    kubernetes: Path,
    **options: Any,
) -> Answer:
    """Run a job on a Ray cluster.

    The job is sent with the code and the embedded models, followed to its end, and its result given. Ctrl-C leaves it
    running; the same command follows it again.

    The same job on the same day is sent once; a job that failed or was stopped is sent again.

    
    With --print it goes to Kubernetes instead, through kubectl:
      rayjob    a cluster of its own for one run
      cronjob   every night to a cluster that stands

    docs/clusters.md tells more.
    """
    if job is None or stop is not None:
        return _stop(job, stop, address=address)
    config = _annotate_job(str(job), {}, overrides)
    if printed is not None:
        from concord.workflows.cluster import kubernetes as printer

        return printer.run(config, printed, name=job.stem, place=printer.read_kubernetes(kubernetes))
    from concord.pipeline.executors.ray_auth import resolve_auth_mode

    resolve_auth_mode(address)
    from concord.workflows.cluster import submit as workflow

    return workflow.run(config, workflow.SubmitOptions(address=address, name=job.stem, wait=not no_wait, **options))


def _stop(job: Path | None, submission_id: str | None, *, address: str) -> Answer:
    if job is not None or submission_id is None:
        raise click.UsageError("Expected one of JOB.yaml and --stop ID.")
    from concord.pipeline.executors.ray_auth import resolve_auth_mode

    resolve_auth_mode(address)
    from concord.workflows.cluster import submit as workflow

    return workflow.stop(submission_id, address=address)


@main.group(cls=_InOrder)
def registry() -> None:
    """Look after the versions of models.

    The registry is MLflow's, at MLFLOW_TRACKING_URI, else mlflow.db in the folder the command is started from.
    """


@verb(example="concord registry list", group=registry, name="list")
def list_models() -> Answer:
    """List the models with their aliases."""
    from concord.workflows.registry import commands as workflow

    return workflow.list_models()


@verb(example="concord registry show bilstm_crf@champion", group=registry)
@click.argument("model", metavar="NAME[/VERSION|@ALIAS]")
def show(model: str) -> Answer:
    """Describe a model's versions, or one of them."""
    from concord.workflows.registry import commands as workflow

    return workflow.show(model)


@verb(example="concord registry history bilstm_crf", group=registry)
@click.argument("name")
def history(name: str) -> Answer:
    """Show who moved a model's champion, and why.

    Every promotion and every rollback is a line of the ledger, which holds the hash of the line before; exit code 1
    when that chain is broken, with the line.
    """
    from concord.workflows.promotion import history as workflow

    return workflow.run(name)


@verb(example="concord registry register runs/mine/bundle --name entities", group=registry)
@click.argument("bundle", type=EXISTING_FOLDER)
@click.option("--name", required=True, help="The model whose newest version it becomes.")
@click.option("--alias", callback=_free_alias, help="Point this alias at the version, unless a newer one has it.")
def register(bundle: Path, *, name: str, alias: str | None) -> Answer:
    """Make a bundle a version.

    'concord train' registers what it has trained; this is for bundles from elsewhere. The same bundle under the same
    name is registered once.
    """
    from concord.workflows.registry import commands as workflow

    return workflow.register_bundle(bundle, name=name, alias=alias)


@verb(example="concord registry sync runs out", group=registry)
@click.argument("folders", nargs=-1, type=EXISTING_FOLDER)
def sync(folders: tuple[Path, ...]) -> Answer:
    """Send results that the store has missed.

    FOLDERS are trainings or annotated collections, or folders that hold some; without any, runs and out are looked
    through. What was sent before is left as it is, so the command may be given as often as one likes.
    """
    from concord.workflows.registry import commands as workflow

    return workflow.sync(folders or (Path("runs"), Path("out")))


@verb(example="concord status out/news")
@click.argument("output", type=COLLECTION)
def status(output: "OutputPath") -> Answer:
    """Say how far a run is."""
    from concord.workflows.annotation import inspect

    return inspect.status(output)


@verb(example="concord verify out/news")
@click.argument("output", type=COLLECTION)
@click.option("--shallow", is_flag=True, help="Look at names and sizes only, not into the files.")
def verify(output: "OutputPath", *, shallow: bool) -> Answer:
    """Check a finished run's files.

    They are compared with the run's manifest; exit code 1 when something is not as it should be.
    """
    from concord.workflows.annotation import inspect

    return inspect.verify(output, deep=not shallow)


@verb(example="concord diff out/monday out/tuesday --output out/diff.html")
@click.argument("first", metavar="A", type=COLLECTION)
@click.argument("second", metavar="B", type=COLLECTION)
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="Page to write, as HTML.")
@click.option(
    "--top", "listed", type=click.IntRange(min=0), default=20, show_default=True, help="How many changes to list."
)
def diff(first: "OutputPath", second: "OutputPath", *, output: Path | None, listed: int) -> Answer:
    """Say what changed between two annotations.

    A and B are the outputs of finished runs. Documents are matched by id, those that are left by their text. Where the
    text is the same, entities are compared by their offsets: only in A, only in B, with another label, with other
    ends; so are sentences, words, heads and all other columns of the words. The surest contradictions come first: a
    change is as sure as the lesser probability of the two sides. Documents with another text, and dead letters gained
    and lost, are named.

    Changes are no failure: the exit code is 0 with and without them.
    """
    from concord.workflows.diff import command as workflow

    return workflow.run(first, second, listed=listed, output=output)


@main.group(cls=_InOrder)
def errors() -> None:
    """Look after the dead letters of a collection.

    A dead letter is a record that could not be read or annotated. It stands until its file changes, all is done again
    for another tagger, parser or setting, or it is tried again.
    """


stage_option = click.option("--stage", "stages", multiple=True, help="Only of this stage: read, parse, tag, write.")
error_option = click.option("--error", "errors", multiple=True, metavar="NAME", help="Only with this reason.")
id_option = click.option("--id", "ids", multiple=True, help="Only of this document.")


@verb(example="concord errors list out/news --stage read", group=errors, name="list")
@click.argument("output", type=COLLECTION)
@stage_option
@error_option
@id_option
def list_errors(output: "OutputPath", **choice: tuple[str, ...]) -> Answer:
    """List the dead letters: place, stage, reason, tries and message.

    Options may be given often. With --json all letters come, with their whole messages.
    """
    from concord.pipeline.output.dead_letters import DeadLetterFilter
    from concord.workflows.annotation import dead_letters as workflow

    return workflow.list_letters(output, DeadLetterFilter(**choice))


@verb(example="concord errors retry out/news --error parse_failed", group=errors)
@click.argument("output", type=COLLECTION)
@stage_option
@error_option
@id_option
@set_option
def retry(output: "OutputPath", *, overrides: tuple[str, ...], **choice: tuple[str, ...]) -> Answer:
    """Try dead letters again, and nothing else.

    The run's own configuration is used; --set changes what decides no label, such as executor.kind. Parts without a
    chosen letter stay as they are, byte for byte. A file that has changed since is brought up to date as a whole;
    changes of other files wait for 'concord annotate'. Interrupted, the same command goes on.

    A letter that fails again stands with one more try.
    """
    from concord.pipeline.output.dead_letters import DeadLetterFilter
    from concord.workflows.annotation import dead_letters as workflow

    return workflow.retry(output, DeadLetterFilter(**choice), overrides=overrides)


@verb(example="concord report out/news")
@click.argument("output", type=COLLECTION)
def report(output: "OutputPath") -> Answer:
    """Make a finished run's report anew."""
    from concord.workflows.annotation import inspect

    return inspect.report(output)


@verb(example="concord export out/news --to conllu --output exports/news.conllu.zst")
@click.argument("output", metavar="OUT", type=COLLECTION)
@click.option("--to", required=True, type=click.Choice(["conllu", "jsonl", "brat", "label-studio", "docbin"]))
@click.option(
    "--output", "-o", "destination", required=True, type=click.Path(path_type=Path), help="A new file or folder."
)
@click.option("--ids", type=EXISTING_FILE, help="Only these documents: one id a line, or an earlier export.")
@click.option("--limit", type=click.IntRange(min=1), help="Take only the first so many documents.")
def export(
    output: "OutputPath",
    *,
    to: Literal["conllu", "jsonl", "brat", "label-studio", "docbin"],
    destination: Path,
    ids: Path | None,
    limit: int | None,
) -> Answer:
    """Write a collection for other tools.

    CoNLL-U, JSON Lines (either also .gz or .zst) and Label Studio's tasks are one file, brat and spaCy's DocBin a
    folder. It takes its name when all of it is there.

    All but CoNLL-U hold the raw text, which is read again from the input and compared by its hash. Documents that have
    changed since are left out and listed beside the export; exit code 3.
    """
    from concord.workflows.annotation import export as workflow

    return workflow.run(output, destination, to=to, ids=ids, limit=limit)


@verb(example="concord review out/news --output queues/first.json --size 200 --per-type 80")
@click.argument("output", metavar="OUT", type=COLLECTION)
@click.option(
    "--output", "-o", "destination", required=True, type=click.Path(path_type=Path), help="A new file or folder."
)
@click.option("--size", required=True, type=click.IntRange(min=1), help="Sentences in the queue.")
@click.option("--to", type=click.Choice(["label-studio", "jsonl", "brat"]), default="label-studio", show_default=True)
@click.option(
    "--per-document", type=click.IntRange(min=1), default=5, show_default=True, help="The most of one document."
)
@click.option("--per-type", type=click.IntRange(min=1), help="The most about one type; O are words in no name.")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides between equals.")
@click.option("--done", multiple=True, type=EXISTING_FILE, help="Without these documents: an earlier queue, or ids.")
def review(
    output: "OutputPath",
    *,
    destination: Path,
    size: int,
    to: Literal["label-studio", "jsonl", "brat"],
    per_document: int,
    per_type: int | None,
    seed: int,
    done: tuple[Path, ...],
) -> Answer:
    """Draw a queue for annotators.

    The sentences come first in which the tagger is least sure of an entity, or of a word that it took for none; each
    with its score and the reason. The same command over the same collection gives the same queue.
    """
    from concord.pipeline.exports.review_queue import Quotas
    from concord.workflows.annotation import export as workflow

    quotas = Quotas(size=size, per_document=per_document, per_type=per_type, seed=seed)
    return workflow.review(output, destination, to=to, quotas=quotas, done=done)


@verb(example="concord schema tokens")
@click.argument("table", required=False)
def schema(table: str | None) -> Answer:
    """Describe the columns of the output."""
    from concord.workflows.annotation import inspect

    return inspect.schema(table)


@verb(example="concord doctor --output /data/out")
@click.option("--output", "-o", type=FOLDER, default=Path("out"), show_default=True, help="Where runs will write.")
def doctor(output: Path) -> Answer:
    """Look this machine over."""
    from concord.workflows.annotation import doctor as workflow

    return workflow.run(output)


def _annotate_job(source: str, options: Mapping[str, Any], overrides: tuple[str, ...]) -> "AnnotateConfig":
    from concord.workflows.jobs import JOB_SUFFIXES, read_annotate_job

    keys = {
        "output": "output",
        "model": "tagger.model",
        "executor": "executor.kind",
        "actors": "executor.actors",
        "limit": "limit",
        "rehash": "planning.rehash",
    }
    values = {keys[name]: value for name, value in options.items() if value is not None}
    if Path(source).suffix in JOB_SUFFIXES:
        return read_annotate_job(Path(source), values=values, overrides=overrides)
    if "output" not in values and not any(override.startswith("output=") for override in overrides):
        raise click.UsageError("Missing option '--output': where the annotated collection is to go.")
    return read_annotate_job(None, values={"input": source, **values}, overrides=overrides)


def _column(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdigit() else text


def _label_map(text: str) -> dict[str, str | None]:
    pairs = [item.partition("=") for item in text.split(",") if item]
    if not all(equals and kind for kind, equals, _ in pairs):
        raise click.UsageError(f"--labels: expected pairs such as GPE=LOC,MISC=, got {text!r}")
    return {kind: wanted or None for kind, _, wanted in pairs}
