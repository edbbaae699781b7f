"""The verbs that prepare corpora, train, score and calibrate taggers, and promote their versions."""

from pathlib import Path
from typing import Any, Literal

import click

from concord.workflows.cli.options import (
    CORPUS,
    EXISTING_FILE,
    EXISTING_FOLDER,
    FILE,
    FOLDER,
    POSITIVE,
    OrderedGroup,
    alias_option,
    compute_options,
    gold_options,
    label_column_option,
    set_option,
    verb,
)
from concord.workflows.console import Answer


@verb(example="concord init my-labels --types DRUG,DOSE")
@click.argument("folder", type=FOLDER)
@click.option("--types", required=True, metavar="DRUG,DOSE", help="The entity types to learn.")
def init(folder: Path, *, types: str) -> Answer:
    """Make a folder to train a tagger of your own labels in.

    It gets a configuration for small data, sample corpora and texts in each accepted form, a list of terms, a gate,
    and a README with the commands in order: prepare, train, evaluate, annotate, promote. They work at once, on the
    samples; replace these by your own.
    """
    from concord.workflows.training.job import init_command

    return init_command(folder, [kind.strip() for kind in types.split(",") if kind.strip()])


@verb(example="concord prepare my/train.conll my/dev.conll my/test.conll --output corpora/mine")
@click.argument("inputs", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--output", "-o", type=FOLDER, help="Folder for the clean corpora; without it (or with -), only check.")
@click.option(
    "--format", type=click.Choice(["conll", "conllu", "conll2012"]), help="Of the input.  [default: by file name]"
)
@click.option("--word-column", type=POSITIVE, default=1, show_default=True, help="Column of words (conll).")
@click.option("--tag-column", type=POSITIVE, help="Column of parts of speech (conll), from 1.")
@label_column_option
@click.option(
    "--label-scheme",
    type=click.Choice(["auto", "BIO2", "IOB1", "BIOES", "TOKENS"]),
    default="auto",
    show_default=True,
    help="Of the input, BIOES also for BILOU and BMES; auto detects it from the training corpus.",
)
@click.option(
    "--to",
    type=click.Choice(["conll", "conllu"]),
    help="Format to write.  [default: conllu if there are trees or tags]",
)
@click.option("--fix", is_flag=True, help="Repair what is unambiguous, such as an entity that begins with I-.")
def prepare(
    inputs: tuple[Path, ...], *, output: Path | None, to: Literal["conll", "conllu"] | None, fix: bool, **form: Any
) -> Answer:
    """Check gold corpora and write clean copies.

    INPUTS are the splits (train, dev, test); a folder stands for the corpus files in it. Problems are reported with
    file and line. The training corpus, the one named train, else the first, determines the scheme of the labels.

    Labels are written in BIO2. If a problem remains, nothing is written and the exit code is 1.
    """
    from concord.pipeline.corpora.corpus_format import GoldFormat
    from concord.workflows.prepare import prepare_command

    destination = None if output == Path("-") else output
    return prepare_command(inputs, GoldFormat(**form), output=destination, to=to, fix=fix)


@verb(example="concord parse examples/train/train.conllu --output runs/train.parsed.conllu.zst")
@click.argument("corpus", type=EXISTING_FILE)
@click.option("--output", "-o", required=True, help="The parsed corpus: .conllu, .conllu.gz or .conllu.zst.")
@set_option
def parse(corpus: Path, *, output: str, overrides: tuple[str, ...]) -> Answer:
    """Add the parser's dependency trees to a gold corpus.

    A tagger that uses trees should be trained on trees of the parser that it will run with.

    Words and labels stay unchanged. A corpus that already has these trees is not written again.
    """
    from concord.workflows.prepare import parse_command, read_parse_job

    return parse_command(read_parse_job({"input": str(corpus), "output": output}, overrides=overrides))


@verb(example="concord train conf/train/bilstm_crf.yaml --set fit.epochs=3")
@click.argument("job", metavar="CONF.yaml", type=EXISTING_FILE)
@click.option("--profile", default="small", show_default=True, help="The profile of the file to train.")
@click.option("--output", "-o", type=FOLDER, help="Folder of checkpoints and bundle.  [default: runs/<job>]")
@click.option("--resume", is_flag=True, help="Continue the training in the folder.")
@alias_option("Point this alias of the registry at the new version.")
@compute_options
@click.option(
    "--no-tracking",
    "tracked",
    flag_value=False,
    default=True,
    help="Do not log to MLflow and do not register the tagger.",
)
@click.option("--force", "forced", is_flag=True, help="Register the tagger even if its F1 on dev is 0.00.")
@set_option
def train(job: Path, *, profile: str, output: Path | None, overrides: tuple[str, ...], **options: Any) -> Answer:
    """Train a tagger and register it.

    MLflow shows parameters and the scores of every epoch while it runs, and gets the bundle (the trained tagger) at the
    end. If it does not answer then, 'concord registry register' registers the bundle later.

    A tagger that finds nothing on dev (F1 0.00) is not registered, and the exit code is 4; its folder stays.

    --set model.KEY and --set fit.KEY override keys of the profile.

    Any tagger can also learn labels of single words, such as parts of speech: --set model.scheme=TOKENS, and for
    CoNLL-U --set data.label_column=upos (or xpos, or a MISC key).
    """
    from concord.workflows.training import train as training
    from concord.workflows.training.job import read_train_job

    train_job = read_train_job(job, profile=profile, overrides=overrides)
    trained = training.train(train_job, training.TrainOptions(folder=output, **options))
    return Answer(values=trained, text=trained.text, exit_code=trained.exit_code)


@verb(example="concord evaluate entities_multi --data examples/train/dev.conllu")
@click.argument("model")
@gold_options
@click.option("--train", multiple=True, type=CORPUS, help="A training corpus, to score unseen names separately.")
@compute_options
@click.option("--samples", type=POSITIVE, help="Number of weight samples.  [default: the tagger's own]")
@click.option("--threshold", type=float, help="Nats above which stage two decides.  [default: the tagger's own]")
def evaluate(model: str, *, samples: int | None, threshold: float | None, **options: Any) -> Answer:
    """Score a tagger on gold corpora.

    MODEL is a folder, a bundled tagger, models:/NAME@ALIAS, spacy:NAME or hf:FOLDER.

    Reports strict entity scores overall, by type, by whether --train contains the name, and by language if there are
    several. For a tagger of token labels: accuracy, overall and by label.
    """
    from concord.models.data.outputs import PredictOptions
    from concord.workflows.evaluation import EvaluateJob, evaluate_command
    from concord.workflows.registry import find_tagger

    predict = PredictOptions.from_mapping({"samples": samples, "threshold": threshold})
    return evaluate_command(EvaluateJob(folder=find_tagger(model).folder, options=predict, **options))


@verb(example="concord compare entities_en_small entities_multi --data examples/train/dev.conllu")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@gold_options
@click.option("--train", multiple=True, type=CORPUS, help="A training corpus, to tell seen names from unseen ones.")
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="Significance level over all lines together.",
)
@compute_options
def compare(first: str, second: str, **options: Any) -> Answer:
    """Test whether tagger B is better than tagger A.

    A and B are folders, bundled taggers, models:/NAME@ALIAS, spacy:NAME or hf:FOLDER. Both label the corpora, and their
    scores are compared document by document (sentence by sentence in corpora without documents): overall, by entity
    type, by language if there are several, and with --train of seen and unseen names.

    p-values are of a paired randomisation test, with Holm's correction over all lines; intervals are of a bootstrap.
    Each line also gives the smallest difference that the data could have detected. --labels applies to the corpora and
    to both taggers.
    """
    from concord.workflows.evaluation import CompareJob, compare_command
    from concord.workflows.registry import find_tagger

    return compare_command(CompareJob(first=find_tagger(first), second=find_tagger(second), **options))


@verb(example="concord calibrate runs/mine/bundle --data my/calibration.conllu --test my/test.conllu")
@click.argument("model")
@gold_options
@click.option("--output", "-o", type=FOLDER, help="Folder for a calibrated copy.  [default: the bundle itself]")
@click.option("--test", multiple=True, type=CORPUS, help="A gold corpus to measure the result on.")
@click.option(
    "--tokens",
    type=click.Choice(["temperature", "isotonic", "auto"]),
    default="temperature",
    show_default=True,
    help="Method for words; auto chooses by cross-validation.",
)
@click.option(
    "--entities",
    type=click.Choice(["platt", "isotonic", "auto", "none"]),
    default="auto",
    show_default=True,
    help="Method for entities; none leaves them uncalibrated.",
)
@click.option(
    "--recall",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Also find which spans to show so that this share of names is found, such as 0.95.",
)
@click.option("--allow-overlap", is_flag=True, help="Accept documents that the tagger has seen; this is recorded.")
@compute_options
def calibrate(**options: Any) -> Answer:
    """Calibrate a tagger's probabilities to how often it is right.

    MODEL is a folder, a bundled tagger, models:/NAME@ALIAS or hf:FOLDER; all but a folder need --output.

    --data must hold documents that were not used to train the tagger or to choose its checkpoint or threshold. Labels
    and uncertainty stay unchanged; ner_prob, confidence and the tagger's digest change.

    Prints the expected calibration error of words and entities before and after, always on documents that the fit has
    not seen: by cross-validation on --data, and on --test.

    With --recall, annotate can write spans that the tagger may have missed as candidates (output.candidates=true). So
    many are shown that this share of a document's names is expected to be shown in all, on documents like those of
    --data (conformal risk control).
    """
    from concord.workflows.training.calibrate import CalibrateJob, calibrate_command

    return calibrate_command(CalibrateJob(**options))


@verb(example="concord bundle spacy:en_core_web_sm --output runs/spacy")
@click.argument("model")
@click.option("--output", "-o", required=True, type=FOLDER, help="Folder for the bundle.")
def bundle(model: str, *, output: Path) -> Answer:
    """Write a tagger as a bundle, to register, calibrate or move it.

    MODEL is the model of another library: spacy:NAME, an installed spaCy pipeline or the folder of one, or hf:FOLDER,
    a token-classification model of transformers. A folder, a bundled tagger, or models:/NAME@ALIAS is copied.
    """
    from concord.workflows.registry import bundle_command

    return bundle_command(model, output)


@verb(example="concord promote bilstm_crf 3 --gate conf/promote.yaml")
@click.argument("name")
@click.argument("version", type=POSITIVE)
@click.option(
    "--gate",
    type=FILE,
    default=Path("conf/promote.yaml"),
    show_default=True,
    help="The conditions that the version must meet, and the corpora to test them on.",
)
@click.option("--force", "forced", is_flag=True, help="Promote even if the gate fails; needs --reason.")
@click.option("--reason", metavar="TEXT", help="Recorded in the history.")
@compute_options
def promote(name: str, *, version: int, **options: Any) -> Answer:
    """Make a version the champion if it passes the gate.

    NAME is a registered model, VERSION a number; see concord registry list.

    The version is compared with the champion on the promotion set. It must be significantly better, by a minimum gain,
    no worse in the lines that the gate names, fast enough, with the files that were registered, and trained on none of
    these documents. Every condition is reported. Exit code 4 if one fails, or if the champion was moved in the
    meantime.

    The old champion gets the alias previous, and the move is a line of concord registry history NAME.
    """
    from concord.workflows.promotion import promote_command

    return promote_command(name, version, **options)


@verb(example="concord rollback bilstm_crf --reason 'misses company names since Monday'")
@click.argument("name")
@click.option("--reason", metavar="TEXT", help="Recorded in the history.")
def rollback(name: str, *, reason: str | None) -> Answer:
    """Make the previous champion the champion again.

    The two versions swap aliases, and the move is a line of concord registry history NAME.
    """
    from concord.workflows.promotion import rollback_command

    return rollback_command(name, reason=reason)


@click.group(cls=OrderedGroup)
def registry() -> None:
    """Manage registered models and their versions.

    The registry is MLflow's, at MLFLOW_TRACKING_URI or else mlflow.db in the current folder.
    """


@verb(example="concord registry list", group=registry, name="list")
def list_models() -> Answer:
    """List the models with their versions and aliases."""
    from concord.workflows.registry import list_command

    return list_command()


@verb(example="concord registry show bilstm_crf@champion", group=registry)
@click.argument("model", metavar="NAME[/VERSION|@ALIAS]")
def show(model: str) -> Answer:
    """Show the versions of a model, or the details of one."""
    from concord.workflows.registry import show_command

    return show_command(model)


@verb(example="concord registry history bilstm_crf", group=registry)
@click.argument("name")
def history(name: str) -> Answer:
    """Show who moved a model's champion, when and why.

    Every promotion and rollback is a line, with the MLflow run that holds the evidence.
    """
    from concord.workflows.promotion import history_command

    return history_command(name)


@verb(example="concord registry register runs/mine/bundle --name entities", group=registry)
@click.argument("bundle", type=EXISTING_FOLDER)
@click.option("--name", required=True, help="The model that gets the new version.")
@alias_option("Point this alias at the version, unless a newer version has it.")
def register(bundle: Path, *, name: str, alias: str | None) -> Answer:
    """Register a bundle as a new version of a model.

    For bundles from elsewhere, or of a training that MLflow did not answer; 'concord train' registers what it trains.
    Registering the same bundle under the same name again changes nothing.
    """
    from concord.workflows.registry import register_command

    return register_command(bundle, name=name, alias=alias)
