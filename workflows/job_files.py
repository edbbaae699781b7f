"""Values of job files: YAML that is read strictly and set by dotted keys, and paths.

Paths are relative to the current folder, and absolute from the reading of the job on, because workers have other
working folders. A URL such as ``s3://bucket/key`` stays unchanged.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import yaml
from typing_extensions import override

from concord.models.config import flatten
from concord.models.errors import ConfigError
from concord.models.regular_files import read_regular
from concord.pipeline.errors import InputError
from concord.pipeline.parsing.resolve_parser import SPACY
from concord.pipeline.storage.files import check_path, check_url, is_url, without_secrets
from concord.pipeline.storage.object_stores import StorePath, is_store
from concord.pipeline.storage.output_paths import OutputPath

_LARGEST = 4 << 20
_MOST_VALUES = 50_000
_DEEPEST = 100
_FILE = "file://"


def read_yaml(path: OutputPath) -> dict[str, Any]:
    """Read a YAML file that holds one mapping without duplicate keys."""
    try:
        content = path.read_bytes() if isinstance(path, StorePath) else read_regular(path, largest=_LARGEST)
        values = _parse_yaml(content.decode())
    except OSError as error:
        raise ConfigError(f"{path}: expected a readable YAML file: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected a readable YAML file: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: expected YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping of keys to values, got {type(values).__name__}")
    return values


def apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> None:
    """Set each ``dotted.key=value`` in nested values; a value is parsed as YAML."""
    for key, value in map(parse_override, overrides):
        set_value(values, key, value)


def set_value(values: dict[str, Any], dotted_key: str, value: object) -> None:
    """Set one value by its dotted key, creating mappings as needed."""
    *path, last = dotted_key.split(".")
    if len(path) > _DEEPEST:
        raise ConfigError(f"{dotted_key[:40]}...: expected a key of a job, got one of {len(path) + 1:,} levels")
    current = values
    for index, part in enumerate(path):
        current = current.setdefault(part, {})
        if not isinstance(current, dict):
            raise ConfigError(f"{'.'.join(path[: index + 1])}: expected a mapping, got {current!r}")
    current[last] = value


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested mappings for dotted keys; keys of mappings among the values may be dotted too."""
    mapping: dict[str, Any] = {}
    for key, value in flatten(values).items():
        set_value(mapping, key, value)
    return mapping


def parse_override(override: str) -> tuple[str, Any]:
    """Return the dotted key and the value of ``key=value``, as ``--set`` takes it."""
    key, equals, text = override.partition("=")
    if not equals or not all(part.strip() for part in key.split(".")):
        raise ConfigError(f"--set {override}: expected key=value, as in reader.text_field=body")
    try:
        return key.strip(), _parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override}: expected a YAML value: {error}") from error


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


def _absolute_directory(where: str) -> str:
    if is_url(where):
        url = without_secrets(where)
        raise InputError(f"{url}: expected a local path, got a URL; copy the files to a local folder")
    return absolute(where)


_PATHS: Mapping[str, Callable[[str], str]] = {
    "input": absolute_input,
    "output.path": absolute_output,
    "parser.directory": _absolute_directory,
    "parser.package": lambda name: absolute_model(name) if name.startswith(SPACY) else name,
    "tagger.model": absolute_model,
    "tagger.terms": absolute,
}


def make_paths_absolute(job: dict[str, Any]) -> None:
    """Make the paths absolute that a job sets, before it is read: a default must not look like a choice."""
    given = flatten(job)
    for key, make in _PATHS.items():
        if isinstance(path := given.get(key), str):
            set_value(job, key, make(path))


def cache_folder() -> Path:
    """Return the folder of what can be made or downloaded again: bundles from the registry, indexes of collections."""
    if chosen := os.environ.get("CONCORD_CACHE"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "concord"


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # an untyped library
    """YAML with the numbers of version 1.2 (``1e-3`` is a number), without duplicate keys and of bounded size."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = 0
        self._sizes: dict[int, int] = {}

    @override
    def compose_node(self, parent: Any, index: Any) -> Any:
        """Count values while they are read; an alias counts as all the values that it repeats."""
        before, is_alias = self._values, self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        self._values += self._sizes.get(id(node), 0) if is_alias else 1
        if self._values > _MOST_VALUES:
            raise ValueError(f"more than {_MOST_VALUES:,} values, those that aliases repeat included")
        self._sizes.setdefault(id(node), self._values - before)
        return node


def _parse_yaml(text: str) -> Any:
    """Parse YAML that JSON can hold as well; anything else is a YAMLError."""
    try:
        values = yaml.load(text, Loader=_Loader)  # a SafeLoader, which creates plain values only
        json.dumps(values, default=str)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        # Such as a date that does not exist, a number too long, an alias of itself, or brackets without end.
        raise yaml.YAMLError(f"a value that cannot be used ({error})") from error
    return values


def _unique_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float | None):
            raise yaml.constructor.ConstructorError(
                "while reading a mapping", node.start_mark, f"expected a plain key, got {key!r}", key_node.start_mark
            )
        if key in seen:
            raise yaml.constructor.ConstructorError(
                "while reading a mapping", node.start_mark, f"duplicate key {key!r}", key_node.start_mark
            )
        seen.add(key)
    return dict(loader.construct_mapping(node, deep=True))


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)
