"""Read the texts of JSON Lines files, whole or cut into documents of equal length."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

_WORD = re.compile(r"\S+")


def read_texts(path: Path) -> Iterator[tuple[str, str]]:
    """Yield id and text of each record of a JSON Lines file, which may be compressed."""
    with pa.input_stream(str(path)) as stream:
        yield from ((record["id"], record["text"]) for record in map(json.loads, stream.read().splitlines()))


def write_chunks(paths: Sequence[Path], target: Path, *, words: int, count: int) -> int:
    """Write `count` documents of `words` words each, taken from the files at even distances.

    Texts are only cut between words; a shorter rest is left out.

    Returns:
        how many documents were written; fewer than `count` when the files hold no more.
    """
    chunks = [chunk for path in paths for doc_id, text in read_texts(path) for chunk in _cut(doc_id, text, words)]
    step = max(1.0, len(chunks) / count)
    chosen = [chunks[int(number * step)] for number in range(min(count, len(chunks)))]
    with target.open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"id": doc_id, "text": text}) + "\n" for doc_id, text in chosen)
    return len(chosen)


def _cut(doc_id: str, text: str, words: int) -> Iterator[tuple[str, str]]:
    starts = [match.start() for match in _WORD.finditer(text)]
    for first in range(0, len(starts) - words, words):
        yield f"{doc_id}:{first}", text[starts[first] : starts[first + words]]
