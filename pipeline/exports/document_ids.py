"""Lists of document ids, written one a line or taken from an earlier export."""

from pathlib import Path
from typing import Any

import orjson

from concord.pipeline.errors import InputError


def read_ids(path: Path) -> frozenset[str]:
    """Read the ids of the documents that a file lists.

    A ``.json`` file holds Label Studio tasks. In any other file each line is an id, or a JSON object with a ``doc_id``,
    as in an export to JSON Lines or the ``documents.jsonl`` of an export to brat.

    Raises:
        InputError: when the file cannot be read or has another form.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".json":
            return frozenset(task["data"]["doc_id"] for task in orjson.loads(content))
        lines = content.decode("utf-8-sig").split("\n")
        return frozenset(_id(line.removesuffix("\r")) for line in lines if line.strip())
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InputError(
            f"{path}: expected one id a line, JSON Lines with doc_id, or a .json file of Label Studio tasks: "
            f"{type(error).__name__}: {error}"
        ) from error


def _id(line: str) -> Any:
    return orjson.loads(line)["doc_id"] if line.startswith("{") else line
