"""The verbs that promote versions of models, and the group ``concord registry``."""

from pathlib import Path
from typing import Any

import click

from concord.workflows.cli.options import (
    EXISTING_FOLDER,
    FILE,
    FOLDER,
    POSITIVE,
    OrderedGroup,
    alias_option,
    compute_options,
    verb,
)
from concord.workflows.console import Answer


@verb(example="concord bundle spacy:en_core_web_sm --output runs/spacy")
@click.argument("model")
@click.option("--output", "-o", required=True, type=FOLDER, help="Folder for the bundle.")
def bundle(model: str, *, output: Path) -> Answer:
    """Write a tagger as a bundle, to register, calibrate or move it.

    MODEL is the model of another library: spacy:NAME, an installed spaCy pipeline or the folder of one, or hf:FOLDER,
    a token-classification model of transformers. A folder, a bundled tagger, or models:/NAME@ALIAS is copied.
    """
    from concord.workflows.registry.resolve_tagger import bundle_command

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
    from concord.workflows.promotion.promote import promote_command

    return promote_command(name, version, **options)


@verb(example="concord rollback bilstm_crf --reason 'misses company names since Monday'")
@click.argument("name")
@click.option("--reason", metavar="TEXT", help="Recorded in the history.")
def rollback(name: str, *, reason: str | None) -> Answer:
    """Make the previous champion the champion again.

    The two versions swap aliases, and the move is a line of concord registry history NAME.
    """
    from concord.workflows.promotion.promote import rollback_command

    return rollback_command(name, reason=reason)


@click.group(cls=OrderedGroup)
def registry() -> None:
    """Manage registered models and their versions.

    The registry is MLflow's, at MLFLOW_TRACKING_URI or else mlflow.db in the current folder.
    """


@verb(example="concord registry list", group=registry, name="list")
def list_models() -> Answer:
    """List the models with their versions and aliases."""
    from concord.workflows.registry.model_versions import list_command

    return list_command()


@verb(example="concord registry show bilstm_crf@champion", group=registry)
@click.argument("model", metavar="NAME[/VERSION|@ALIAS]")
def show(model: str) -> Answer:
    """Show the versions of a model, or the details of one."""
    from concord.workflows.registry.model_versions import show_command

    return show_command(model)


@verb(example="concord registry history bilstm_crf", group=registry)
@click.argument("name")
def history(name: str) -> Answer:
    """Show who moved a model's champion, when and why.

    Every promotion and rollback is a line, with the MLflow run that holds the evidence.
    """
    from concord.workflows.promotion.promote import history_command

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
    from concord.workflows.registry.model_versions import register_command

    return register_command(bundle, name=name, alias=alias)
