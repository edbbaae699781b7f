"""Paths of job files: relative to the current folder, and absolute from the reading of the job on.

Workers have other working directories. A URL such as ``s3://bucket/key`` stays unchanged.
"""

import os
from collections.abc import Sequence
from glob import glob, has_magic
from pathlib import Path

from concord.models.errors import ConfigError
from concord.pipeline.config import ParserConfig
from concord.pipeline.errors import InputError
from concord.pipeline.parsing.resolve_parser import SPACY
from concord.pipeline.storage.store_path import is_store
from concord.pipeline.storage.urls import check_path, check_url, is_url, without_secrets

_FILE = "file://"


def absolute(path: str) -> str:
    """Make a local path absolute; a URL such as ``s3://bucket/key`` stays unchanged.

    Raises:
        InputError: for a URL with credentials, or one with a slash too few.
        ConfigError: for the home of a user who does not exist, or a relative path where the current folder is gone.
    """
    if is_url(path):
        check_url(path)
        return path
    check_path(path)
    try:
        return str(Path(path).expanduser().absolute())
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: expected an absolute path, since the current folder is gone") from error
    except RuntimeError as error:
        raise ConfigError(f"{path}: expected a path, got the home of a user who does not exist") from error


def absolute_input(where: str) -> str:
    """Return an input's absolute path, or its normalized URL, as ``absolute`` does; a file URL becomes a path."""
    path = absolute(f"/{where.removeprefix(_FILE).lstrip('/')}" if where.startswith(_FILE) else where)
    # Not resolve(): a link such as `latest` keeps its own name.
    return path.rstrip("/") if is_url(path) else os.path.abspath(path)  # noqa: PTH100


def absolute_output(where: str) -> str:
    """Return an output's path as ``absolute_input`` does; InputError for a URL that is not of an object store."""
    output = absolute_input(where)
    if is_url(output) and not is_store(output):
        raise InputError(f"{where}: expected a folder, s3://, gs:// or az:// for the output; other URLs are read-only")
    return output


def absolute_model(name: str) -> str:
    """Make the folder of a model absolute, that of ``hf:FOLDER`` too; a name or ``models:/...`` stays unchanged."""
    if name.startswith("models:/"):
        return name
    adapter, colon, source = name.rpartition(":") if name.partition(":")[0].isidentifier() else ("", "", name)
    folder = absolute(source)
    return f"{adapter}{colon}{folder}" if Path(folder).is_dir() else name


def corpus_paths(names: Sequence[str], *, key: str) -> list[str]:
    """Return the absolute paths of corpora; a pattern stands for the files that match it, sorted."""
    paths = []
    for path in map(absolute, names):
        if Path(path).exists() or not has_magic(path):
            paths.append(path)
            continue
        # Not Path.glob: it also matches hidden files.
        matching = sorted(name for name in glob(path, recursive=True) if Path(name).is_file())  # noqa: PTH207
        if not matching:
            raise ConfigError(f"{key}: expected files that match {path}, found none")
        paths += matching
    return paths


def absolute_parser(parser: ParserConfig) -> dict[str, ParserConfig]:
    """Return the parser with absolute paths if the job sets any; a default must not look like a choice."""
    changes = {}
    if parser.directory is not None:
        if is_url(parser.directory):
            url = without_secrets(parser.directory)
            raise InputError(f"{url}: expected a local path, got a URL; copy the files to a local folder")
        changes["directory"] = absolute(parser.directory)
    if parser.package.startswith(SPACY):
        changes["package"] = absolute_model(parser.package)
    return {"parser": parser.model_copy(update=changes)} if changes else {}
