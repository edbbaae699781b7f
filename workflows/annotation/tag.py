"""``concord tag``: the entities of one text, for a look; nothing is written."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import InputError
from concord.pipeline.texts import TextAnnotator
from concord.workflows.annotation.job import job_values, read_annotate_job
from concord.workflows.console import Answer, printable, table
from concord.workflows.registry.resolve_tagger import find_entity_tagger

_COLOURS = ("blue", "yellow", "green", "magenta", "cyan", "red")
_SHOWN = ("text", "label", "confidence", "start_char", "end_char")


def run(text: str, *, model: str | None, device: str | None) -> Answer:
    """Annotate one text and return its entities; offsets are code points of the text.

    Raises:
        InputError: when the text cannot be annotated.
        ModelError: when the tagger or the parser cannot be loaded.
    """
    # A job needs both places; nothing is read or written there.
    values = {"input": ".", "output": ".", **job_values({"model": model, "device": device})}
    config = read_annotate_job(None, values=values)
    tagger = find_entity_tagger(config.tagger.model, named=model is not None)
    annotator = TextAnnotator.load(tagger, parser=config.parser, run=config.tagger)
    outcomes = annotator.annotate([text])
    for outcome in outcomes:
        if isinstance(outcome, DeadLetter):
            raise InputError(outcome.message)
    entities = annotator.tables(outcomes)["entities"].to_pylist()
    rows = [{name: entity[name] for name in (*_SHOWN, "sent_id")} for entity in entities]
    values = {"text": text, "tagger": tagger.identity.model_dump(), "entities": rows}
    return Answer(values=values, text=_describe(text, rows))


def _describe(text: str, entities: Sequence[Mapping[str, Any]]) -> str:
    """Format the text with its entities marked, and a table of them."""
    marked = "".join(_pieces(text, entities)).rstrip("\n")
    if not entities:
        return f"{marked}\n\nno entities"
    rows = [tuple(entity[name] for name in _SHOWN) for entity in entities]
    return f"{marked}\n\n{table(rows, header=('entity', 'type', 'confidence', 'start', 'end'))}"


def _pieces(text: str, entities: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    labels = sorted({entity["label"] for entity in entities})
    end = 0
    for entity in entities:
        colour = _COLOURS[labels.index(entity["label"]) % len(_COLOURS)]
        yield _lines(text[end : entity["start_char"]])
        yield click.style(f"[{_lines(entity['text'])} {entity['label']}]", fg=colour, bold=True)
        end = entity["end_char"]
    yield _lines(text[end:])


def _lines(text: str) -> str:
    """Escape control characters but line feeds."""
    return "\n".join(map(printable, text.split("\n")))
