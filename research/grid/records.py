"""The records of finished runs: new ones as one JSON file a run in the working folder, all others packed in one file.

A run writes its record into the working folder, where runs of other processes do not get in its way. ``pack_records``
moves these records into the packed file, which is committed: one line a run, sorted by the run's name. A new record
of today's configuration replaces one of an earlier configuration.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from concord.models.errors import ConfigError
from concord.pipeline.storage.atomic_writes import write_atomically
from concord.pipeline.storage.locks import exclusive

PACKED = Path("benchmarks/results/grid.jsonl")
RECORDS_FOLDER = "records"
_LOCK_NAME = "records.lock"

Record = Mapping[str, Any]
IsCurrent = Callable[[Record], bool]
"""Says whether a record is of today's configuration."""


def read_records(packed: Path, work: Path, is_current: IsCurrent) -> dict[str, Record]:
    """Read the records of the packed file and of the working folder, by the name of their run.

    Raises:
        ConfigError: when a record cannot be read, or a run has two different ones and not only the new one is current.
    """
    # The folder first: a record that is packed meanwhile is then found twice and not missed.
    new = list(_read_new(work))
    return _merge(packed, _read_packed(packed), new, is_current)


def write_record(work: Path, record: Record) -> None:
    """Atomically write the record of a finished run into the working folder, its numbers rounded but the settings."""
    folder = work / RECORDS_FOLDER
    settings = {"settings": record["settings"]} if "settings" in record else {}
    write_atomically(folder / f"{record['run']}.json", _serialize([{**rounded(record), **settings}]), staging=folder)


def pack_records(packed: Path, work: Path, is_current: IsCurrent) -> list[str]:
    """Move the records of the working folder into the packed file.

    A record is removed from the folder only after the packed file with it is on disk, so this may be killed at any
    point and repeated.

    Returns:
        the names of the runs whose records are new in the packed file.

    Raises:
        ConfigError: as ``read_records`` does; nothing is written then.
    """
    with exclusive(work / _LOCK_NAME):
        new, known = list(_read_new(work)), _read_packed(packed)
        records = _merge(packed, known, new, is_current)
        if new:
            write_atomically(packed, _serialize(records[name] for name in sorted(records)), staging=packed.parent)
        for path, _ in new:
            path.unlink()
        return sorted(name for name, record in records.items() if known.get(name) != record)


def rounded(value: Any, digits: int = 4) -> Any:
    """Round every float within plain values."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, Mapping):
        return {key: rounded(item, digits) for key, item in value.items()}
    return [rounded(item, digits) for item in value] if isinstance(value, list | tuple) else value


def _read_new(work: Path) -> Iterator[tuple[Path, Record]]:
    for path in sorted((work / RECORDS_FOLDER).glob("*.json")):
        # Another process may pack a record after it was listed.
        with suppress(FileNotFoundError):
            yield path, _parse(path.read_bytes(), str(path))


def _read_packed(packed: Path) -> dict[str, Record]:
    records: dict[str, Record] = {}
    lines = packed.read_bytes().splitlines() if packed.exists() else []
    for number, line in enumerate(lines, start=1):
        record = _parse(line, f"{packed}:{number}")
        if records.setdefault(record["run"], record) is not record:
            raise ConfigError(f"{packed}:{number}: expected one record a run, got a second of {record['run']}")
    return records


def _merge(
    packed: Path, known: Mapping[str, Record], new: Iterable[tuple[Path, Record]], is_current: IsCurrent
) -> dict[str, Record]:
    records = dict(known)
    for path, record in new:
        name = record["run"]
        if name not in known or (is_current(record) and not is_current(known[name])):
            records[name] = record
        elif records[name] != record:
            raise ConfigError(f"{path}: expected the record that {packed} holds of this run; delete one of the two")
    return records


def _parse(content: bytes, place: str) -> Record:
    try:
        record = json.loads(content)
        str(record["run"])
    except (ValueError, TypeError, LookupError) as error:
        raise ConfigError(f"{place}: expected the record of a run, delete it to run it again: {error}") from error
    return dict(record)


def _serialize(records: Iterable[Record]) -> bytes:
    return b"".join(json.dumps(record, separators=(",", ":")).encode() + b"\n" for record in records)
