"""A Delta log beside each table of a collection, so that other tools read its generations and their history.

Each generation is one version of six Delta tables. No row is copied: the log names the parts as they are, with the
statistics of their footers. In a file system a Delta table is ``OUT/delta/<table>``, with hard links of the parts that
any version names; in an object store it is ``OUT/<table>`` itself, whose parts stay where they are.

A version is written once: it is marked with the application ``concord`` and the number of the generation.
"""

import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from concord.models.errors import ConcordError, ConfigError
from concord.pipeline.errors import IntegrityError, StoreError
from concord.pipeline.output.collection import Collection
from concord.pipeline.output.generations import Generations
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.storage.atomic_writes import crash_point
from concord.pipeline.storage.guarded import folder_of, names_in, remove_file
from concord.pipeline.storage.links import hard_link
from concord.pipeline.storage.object_stores import explain
from concord.pipeline.storage.output_paths import OutputPath, arrow_source, list_files

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, CommitProperties

APPLICATION = "concord"
FOLDER = "delta"
"""Below a collection's folder: the Delta tables."""
_LONGEST_BOUND = 128
"""Characters of a string in the statistics: a lower bound is cut, an upper bound that is longer is left out."""
_ATTEMPTS = 3
_STACK = re.compile(r"\n\s*0: ")
_ARROW = re.compile(r"\s*(\x1b\[\d*m)?↳(\x1b\[\d*m)?\s*")
_ENCODED = re.compile("%[0-9A-Fa-f]{2}")
_first_process: list[int] = []


def check_delta(output: OutputPath) -> None:
    """Raise ConfigError where a Delta log cannot be written."""
    try:
        import deltalake  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError("output.delta: needs deltalake; pip install 'concord-annotate[delta]'") from error
    if _first_process and _first_process != [os.getpid()]:
        raise ConfigError(
            "output.delta: this process was forked from one that has written a Delta log, whose threads it lacks; "
            "start it with multiprocessing's spawn instead"
        )
    if _ENCODED.search(str(output)):
        raise ConfigError(f"output.delta: deltalake cannot read below a path with percent-encoding, got {output}")


def write_delta_log(collection: Collection) -> None:
    """Make a collection's generation the newest version of its six Delta tables, unless they have it already.

    A log that was not written for some generations goes from the last version to this one in a single step.

    Raises:
        ConfigError: as ``check_delta``.
        StoreError: when the store fails, or a log is broken.
    """
    check_delta(collection.output)
    _first_process[:] = [os.getpid()]
    generation = collection.manifest.generation
    for name in SCHEMAS:
        parts = {path.name: path for path in collection.parts(name)}
        folder = delta_folder(collection.output, name)
        with _delta_errors(folder):
            _write_version(name, folder, parts, generation)
        crash_point("delta")


def prune_delta_log(generations: Generations) -> int:
    """Remove the parts of versions that no kept generation names, and return how many; the newest version stays whole.

    Such versions stay in the log and can no longer be read. In an object store there is nothing to remove, because the
    parts are those of the collection.
    """
    if not isinstance(generations.output, Path):
        return 0
    folders = {name: generations.output / FOLDER / name for name in SCHEMAS}
    # Listed before anything else is read: a run that finishes meanwhile adds parts that are named only later.
    parts = {name: [file for file in names_in(folder) if file.endswith(".parquet")] for name, folder in folders.items()}
    kept = [generation.manifest() for generation in generations.history()]
    removed = 0
    for name, folder in folders.items():
        if not _check_log(folder):
            continue
        with _delta_errors(folder):
            named = _active(_open(folder)) | {
                Path(part.path).name for manifest in kept for part in manifest.files(name)
            }
            for file in parts[name]:
                if file not in named:
                    remove_file(folder / file)
                    removed += 1
    return removed


def has_delta_log(output: OutputPath) -> bool:
    """Tell whether a Delta log was ever written for an output; needs no deltalake."""
    return any(list_files(delta_folder(output, "documents") / "_delta_log", "*.json"))


def delta_folder(output: OutputPath, table: str) -> OutputPath:
    """Return the root of the Delta table of a table."""
    return output / FOLDER / table if isinstance(output, Path) else output / table


def _check_log(folder: Path) -> bool:
    """Tell whether a Delta table has a log; IntegrityError where deltalake would follow a link out of the folder."""
    paths = [folder / "_delta_log" / name for name in names_in(folder / "_delta_log")]
    for path in paths:
        if path.is_symlink() or path.is_fifo() or path.is_char_device():
            raise IntegrityError(f"{path}: expected a file of a Delta log, got a link or a device; remove it")
    return bool(paths)


def _write_version(name: str, folder: OutputPath, parts: Mapping[str, OutputPath], generation: int) -> None:
    """Commit what has changed since the last version; another driver that does the same at once is not in the way."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    if isinstance(folder, Path):
        _check_log(folder)
    for attempt in range(1, _ATTEMPTS + 1):
        table = _open(folder) if DeltaTable.is_deltatable(str(folder), _store_options(folder)) else None
        try:
            _commit(name, folder, table, parts, generation)
        except DeltaError:
            if attempt == _ATTEMPTS:
                raise
        else:
            return


def _commit(
    name: str, folder: OutputPath, table: "DeltaTable | None", parts: Mapping[str, OutputPath], generation: int
) -> None:
    from deltalake import Schema
    from deltalake.transaction import PostCommitHookProperties, RemoveAction, create_table_with_add_actions

    schema = SCHEMAS[name].remove_metadata()
    if table is None:
        create_table_with_add_actions(
            str(folder),
            Schema.from_arrow(schema),
            _additions(folder, parts),
            storage_options=_store_options(folder),
            name=name,
            # Versions can be read as long as their parts are kept, so the log is never shortened.
            configuration={"delta.enableExpiredLogCleanup": "false"},
            commit_properties=_properties(generation),
        )
        return
    written = table.transaction_version(APPLICATION)
    active = _active(table)
    if written == generation and isinstance(folder, Path):
        _link({name: path for name, path in parts.items() if not (folder / name).exists()}, folder)
    if written is not None and (written > generation or (written == generation and active == parts.keys())):
        return
    now = _milliseconds()
    actions: list[AddAction | RemoveAction] = [
        *_additions(folder, {part: path for part, path in parts.items() if part not in active}),
        *(RemoveAction(part, data_change=True, deletion_timestamp=now) for part in sorted(active - parts.keys())),
    ]
    table.create_write_transaction(
        actions,
        "append",
        schema,
        commit_properties=_properties(generation),
        post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
    )


def _properties(generation: int) -> "CommitProperties":
    from deltalake.transaction import CommitProperties, Transaction

    return CommitProperties(
        custom_metadata={"userMetadata": f"generation {generation}"},
        max_commit_retries=0,
        app_transactions=[Transaction(APPLICATION, generation)],
    )


def _additions(folder: OutputPath, parts: Mapping[str, OutputPath]) -> "list[AddAction]":
    """Return the actions that add parts; in a file system, also give them names in the Delta table's folder."""
    from deltalake.transaction import AddAction

    if isinstance(folder, Path):
        _link(parts, folder)
    now = _milliseconds()
    additions = []
    for name, path in parts.items():
        size, statistics = _statistics(path)
        additions.append(AddAction(name, size, {}, now, True, statistics))
    return additions


def _link(parts: Mapping[str, OutputPath], folder: Path) -> None:
    """Give parts a second name in the folder of a Delta table."""
    with folder_of(folder / "*", make=True):
        pass
    for name, path in parts.items():
        if isinstance(path, Path):
            with suppress(FileExistsError):  # equal names have equal bytes
                hard_link(path, folder / name)


def _statistics(path: OutputPath) -> tuple[int, str]:
    """Return the size of a part in bytes, and the statistics of its footer as Delta's JSON."""
    source = arrow_source(path)
    size = path.stat().st_size if isinstance(source, Path) else source.size()
    metadata = pq.read_metadata(source)
    groups = [group for group in map(metadata.row_group, range(metadata.num_row_groups)) if group.num_rows]
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        if "." in name:  # the values of a list
            continue
        of_groups = [group.column(index).statistics for group in groups]
        if any(statistics is None for statistics in of_groups):
            continue
        if not metadata.schema.column(index).max_definition_level:
            nulls[name] = 0
        elif all(statistics.has_null_count for statistics in of_groups):
            nulls[name] = sum(statistics.null_count for statistics in of_groups)
        bounded = [statistics for statistics in of_groups if statistics.num_values]
        if bounded and all(statistics.has_min_max for statistics in bounded):
            _bound(lowest, name, min(statistics.min for statistics in bounded), cut=True)
            _bound(highest, name, max(statistics.max for statistics in bounded), cut=False)
    values = {"numRecords": metadata.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return size, json.dumps(values, ensure_ascii=False)


def _bound(bounds: dict[str, Any], name: str, value: Any, *, cut: bool) -> None:
    """Set the bound of a column, unless it cannot be given as JSON."""
    if isinstance(value, str):
        if len(value) <= _LONGEST_BOUND or cut:
            bounds[name] = value[:_LONGEST_BOUND]
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        bounds[name] = value


def _store_options(folder: OutputPath) -> dict[str, str] | None:
    """Return what deltalake needs beside the store's own variables in the environment, which it reads too."""
    return None if isinstance(folder, Path) else {"allow_http": "true", "max_retries": "5", "retry_timeout": "60s"}


def _open(folder: OutputPath) -> "DeltaTable":
    from deltalake import DeltaTable

    return DeltaTable(str(folder), storage_options=_store_options(folder))


def _active(table: "DeltaTable") -> set[str]:
    return {uri.rpartition("/")[2] for uri in table.file_uris()}


def _milliseconds() -> int:
    return round(time.time() * 1000)


@contextmanager
def _delta_errors(folder: OutputPath) -> Iterator[None]:
    """Turn errors of Delta and of the store into those that runs raise.

    Raises:
        InputError: when an object store refuses access.
        StoreError: for any other fault.
    """
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (OSError, DeltaError, ValueError) as error:
        text = _ARROW.sub(": ", _STACK.split(str(error))[0])
        if not isinstance(folder, Path) and "Error performing" in text:
            # What the store has answered may hold credentials, and so may the URL of the request.
            explained = explain(OSError(text), str(folder), "writing the Delta log")
            if isinstance(explained, ConcordError):
                raise type(explained)(f"{explained}; the collection itself is complete") from None
        reason = " ".join(text.partition("<")[0].split())
        raise StoreError(
            f"{folder}: the Delta log cannot be written ({reason}); the collection itself is complete. Repair the "
            f"store and run the same command again, or remove {folder / '_delta_log'} to have a new log written"
        ) from error
