"""``concord tag``, the entities of one text, and texts from stdin."""

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

import click

from concord.pipeline.documents import AnnotatedDocument, DeadLetter
from concord.pipeline.errors import InputError
from concord.pipeline.job import ResolvedJob
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.readers.read_file import reader_for
from concord.pipeline.report.html import HUES, type_colours
from concord.pipeline.storage.atomic_writes import move_into_place, stage_file, store_errors
from concord.workflows.annotation.job import read_text_config
from concord.workflows.console import Answer, printable, table
from concord.workflows.registry import find_entity_tagger

STDIN_NAME = "stdin"
_COLOURS = ("blue", "yellow", "green", "magenta", "cyan", "red", "bright_blue", "bright_green")
_SHOWN = ("text", "label", "confidence", "start_char", "end_char")


def tag_text(text: str, *, model: str | None, device: str | None) -> Answer:
    """Annotate one text and return its entities; offsets are code points of the text.

    Raises:
        InputError: when the text cannot be annotated.
        ModelError: when the tagger or the parser cannot be loaded.
    """
    if not text.strip():
        raise InputError("expected a text with words, got " + ("white space" if text else "nothing"))
    config = read_text_config({"model": model, "device": device})
    tagger = find_entity_tagger(config.tagger.model)
    from concord.pipeline.texts import TextAnnotator  # imports torch

    # Of what the parser finds, only a tagger that reads trees needs more than the words.
    reads_trees = tagger.trees is not None
    parser = config.parser.model_copy(update={"trees": reads_trees, "tags": reads_trees})
    annotator = TextAnnotator.load(tagger, parser=parser, settings=config.tagger)
    [outcome] = annotator.annotate([text])
    if isinstance(outcome, DeadLetter):
        raise InputError(outcome.message)
    entities = list(_entities(outcome))
    values = {"text": text, "tagger": tagger.identity.model_dump(), "entities": entities}
    return Answer(values=values, text=_describe(text, entities))


def _entities(annotated: AnnotatedDocument) -> Iterator[dict[str, Any]]:
    """Yield what is shown of the entities; their other columns would need the text's language, which takes long."""
    sentences = annotated.parsed.sentences
    words = [word for sentence in sentences for word in sentence.words]
    starts = accumulate((len(sentence.words) for sentence in sentences), initial=0)
    for sent_id, (start, prediction) in enumerate(zip(starts, annotated.predictions, strict=False)):
        for span, confidence, _ in prediction.entities:
            start_char, end_char = words[start + span.start].start_char, words[start + span.end - 1].end_char
            text = annotated.parsed.document.text[start_char:end_char]
            yield dict(
                zip((*_SHOWN, "sent_id"), (text, span.label, confidence, start_char, end_char, sent_id), strict=True)
            )


def read_stdin() -> str:
    """Read one text in UTF-8; a byte order mark is dropped.

    Raises:
        InputError: when stdin is closed, or in another encoding.
    """
    try:
        return _stdin().read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"stdin: expected text in utf-8, got {error}; convert it, as with iconv") from None


def keep_stdin(job: ResolvedJob) -> ResolvedJob:
    """Copy stdin to ``_run`` below the output, where it can be planned again, and return the job that reads the copy.

    It replaces that of an earlier run. With ``reader.format`` auto, it is one text.

    Raises:
        InputError: when stdin is closed or empty, there is no such format, or the output cannot be used.
        StoreError: when there is no space.
    """
    stream = _stdin()
    first = stream.read(1)
    if not first:
        raise InputError("stdin: expected a text or records, got nothing; the collection stays as it is")
    config, folder = job.config, job.folder
    name = "text" if config.reader.format == "auto" else config.reader.format
    _check_empty_or_collection(folder)
    kept = folder.metadata / f"{STDIN_NAME}{reader_for(name).suffixes[0]}"

    def copy(staged: BinaryIO) -> None:
        staged.write(first)
        shutil.copyfileobj(stream, staged)

    with store_errors(kept):
        if isinstance(kept, Path):
            move_into_place(stage_file(folder.staging or kept.parent, copy), kept)
        else:
            kept.write(first + stream.read())
    return replace(job, config=config.model_copy(update={"input": str(kept)}))


def _check_empty_or_collection(folder: OutputFolder) -> None:
    """Refuse a folder of other files, which a copy of stdin would turn into the output of a run."""
    if isinstance(folder.output, Path) and folder.latest_generation() is None:
        other = next((path for path in folder.output.glob("*") if path != folder.metadata), None)
        if other is not None:
            raise InputError(
                f"{folder.output}: expected a new folder or a collection, got one that contains {other.name}; choose "
                "another --output"
            )


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise InputError("stdin: expected a text, got a closed stream")
    return sys.stdin.buffer


def _describe(text: str, entities: Sequence[Mapping[str, Any]]) -> str:
    """Format the text with its entities marked, and a table of them."""
    marked = "".join(_pieces(text, entities)).rstrip("\n")
    if not entities:
        return f"{marked}\n\nno entities"
    rows = [tuple(entity[name] for name in _SHOWN) for entity in entities]
    return f"{marked}\n\n{table(rows, header=('entity', 'type', 'confidence', 'start', 'end'))}"


def _pieces(text: str, entities: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    colours = type_colours(entity["label"] for entity in entities)
    end = 0
    for entity in entities:
        colour = _COLOURS[colours[entity["label"]] % HUES]
        yield _lines(text[end : entity["start_char"]])
        yield click.style(f"[{_lines(entity['text'])} {entity['label']}]", fg=colour, bold=True)
        end = entity["end_char"]
    yield _lines(text[end:])


def _lines(text: str) -> str:
    """Escape control characters but line feeds."""
    return "\n".join(map(printable, text.split("\n")))
