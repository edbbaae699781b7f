"""Lists of documents: ids one a line, or what an export has written."""

from pathlib import Path
from typing import Any

import orjson

from concord.pipeline.errors import InputError


def read_ids(path: Path) -> frozenset[str]:
    """Read which documents a file names.

    A file that ends in ``.json`` holds tasks of Label Studio. Of any other each line is an id, or an object with a
    ``doc_id``, as in JSON Lines of an export or the ``documents.jsonl`` of a brat folder.

    Raises:
        InputError: when the file cannot be read, or names a document otherwise.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".json":
            return frozenset(task["data"]["doc_id"] for task in orjson.loads(content))
        lines = content.decode("utf-8-sig").split("\n")
        return frozenset(_id(line.removesuffix("\r")) for line in lines if line.strip())
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InputError(
            f"{path}: expected one id a line, JSON Lines with doc_id, or a .json file of Label Studio's tasks: "
            f"{type(error).__name__}: {error}"
        ) from error


def _id(line: str) -> Any:
    return orjson.loads(line)["doc_id"] if line.startswith("{") else line
