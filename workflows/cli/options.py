"""What the commands share: the ``verb`` decorator, parameter types, and options that several verbs take."""

import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from itertools import chain
from pathlib import Path
from typing import Any

import click
from typing_extensions import override

from concord.workflows.console import Answer, emit, report_errors

_ALIAS = re.compile(r"(?!(?:latest|v\d+)$)[\w-]{1,255}", re.IGNORECASE)
MODELS = "A folder, a bundled tagger, models:/NAME@ALIAS, spacy:NAME or hf:FOLDER"
FOLDER = click.Path(path_type=Path, file_okay=False)
EXISTING_FOLDER = click.Path(path_type=Path, file_okay=False, exists=True)
FILE = click.Path(path_type=Path, dir_okay=False)
EXISTING_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
CORPUS = click.Path(dir_okay=False, exists=True)
POSITIVE = click.IntRange(min=1)


class OrderedGroup(click.Group):
    """A group that lists its commands in the order in which they were added."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


class SectionedGroup(OrderedGroup):
    """A group whose help lists its commands under headings."""

    def __init__(self, *arguments: Any, sections: Mapping[str, Sequence[click.Command]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._sections = sections
        for command in chain.from_iterable(sections.values()):
            self.add_command(command)

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = formatter.width - 6 - max(map(len, self.commands))
        for heading, commands in self._sections.items():
            with formatter.section(heading):
                formatter.write_dl([(str(command.name), command.get_short_help_str(width)) for command in commands])


class _StoreOrFolder(click.Path):
    """A folder, or the URL of an object store."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from concord.pipeline.errors import InputError
        from concord.pipeline.storage.files import check_url
        from concord.pipeline.storage.object_stores import StorePath, is_store

        if not is_store(str(value)):
            return super().convert(value, param, ctx)
        try:
            check_url(value)
        except InputError as error:
            self.fail(str(error), param, ctx)
        return StorePath.parse(value)


COLLECTION = _StoreOrFolder(path_type=Path, file_okay=False, exists=True)
OUTPUT = _StoreOrFolder(path_type=Path, file_okay=False)


def verb(
    *, example: str, group: click.Group | None = None, name: str | None = None
) -> Callable[[Callable[..., Answer]], click.Command]:
    """Turn a function that returns an answer into a command with ``--json`` and readable error messages.

    Args:
        example: printed at the end of its help.
        group: the group to add it to, if any.
        name: of the command; the function's own if None.
    """

    def make(work: Callable[..., Answer]) -> click.Command:
        @functools.wraps(work)
        def call(*, as_json: bool, **arguments: Any) -> None:
            with report_errors(as_json=as_json):
                # Libraries print there as well: Ray says on stdout that a node is gone.
                with redirect_stdout(sys.stderr):
                    answer = work(**arguments)
                emit(answer, as_json=as_json)

        option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
        command = click.command(name, epilog=f"\b\nExample:\n  {example}")(option(call))
        if group is not None:
            group.add_command(command)
        return command

    return make


set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the job; may be repeated."
)
device_option = click.option(
    "--device",
    type=click.Choice(["cpu", "cuda", "auto"]),
    default="cpu",
    show_default=True,
    help="Where the tagger runs; auto uses a GPU if there is one.",
)


def compute_options(work: Callable[..., Answer]) -> Callable[..., Answer]:
    """Add ``--device``, and ``--threads``, with which the function then runs."""

    @functools.wraps(work)
    def call(*, threads: int | None, **arguments: Any) -> Answer:
        from concord.models.bundles.checkpoint import pick_device
        from concord.pipeline.resources import torch_threads

        pick_device(arguments["device"])  # a GPU that is not there is told of before anything is read
        with torch_threads(threads):
            return work(**arguments)

    option = click.option(
        "--threads",
        type=POSITIVE,
        help="Threads to compute with.  [default: OMP_NUM_THREADS, else all cores, at most 4]",
    )
    return device_option(option(call))


label_column_option = click.option(
    "--label-column",
    metavar="NAME",
    callback=lambda _context, _option, text: int(text) if text is not None and text.isdigit() else text,
    help="Where the labels are. CoNLL-U: upos, xpos or a MISC key; CoNLL: a column number, from 1.",
)


def _label_map(_context: click.Context, _option: click.Parameter, text: str) -> dict[str, str | None]:
    pairs = [item.partition("=") for item in text.split(",") if item]
    if not all(equals and kind for kind, equals, _ in pairs):
        raise click.UsageError(f"--labels: expected pairs such as GPE=LOC,MISC=, got {text!r}")
    return {kind: label or None for kind, _, label in pairs}


labels_option = click.option(
    "--labels",
    default="",
    callback=_label_map,
    metavar="GPE=LOC,MISC=",
    help="Rename entity types of corpora and taggers; an empty name drops the type.",
)


def gold_options(work: Callable[..., Answer]) -> Callable[..., Answer]:
    """Add the options that name gold corpora; the function takes them as ``data``, ``labels`` and ``form``."""
    data = click.option(
        "--data",
        "-d",
        required=True,
        multiple=True,
        type=CORPUS,
        help="A gold corpus: .conllu or .conll; may be repeated.",
    )

    @functools.wraps(work)
    def call(*, label_column: int | str | None, **arguments: Any) -> Answer:
        from concord.pipeline.corpora.corpus_format import GoldFormat

        return work(form=GoldFormat(label_column=label_column), **arguments)

    return data(labels_option(label_column_option(call)))


def alias_option(help_text: str) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Return the ``--alias`` option; it refuses what MLflow cannot store, and aliases that only a promotion moves."""

    def check(_context: click.Context, _option: click.Parameter, alias: str | None) -> str | None:
        if alias is None:
            return None
        from concord.workflows.registry import GUARDED_ALIASES

        if alias in GUARDED_ALIASES:
            raise click.BadParameter(
                f"{alias!r} is moved only by 'concord promote' and 'concord rollback', which check the gate and keep "
                "a history; promote the version afterwards, or choose another alias"
            )
        if not _ALIAS.fullmatch(alias):
            raise click.BadParameter(
                f"expected at most 255 letters, digits, '_' and '-', got {alias!r}; the registry reserves 'latest' and "
                "names such as 'v1'"
            )
        return alias

    return click.option("--alias", callback=check, help=help_text)
