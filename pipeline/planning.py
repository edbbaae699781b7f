"""The plan of a run: its input cut into shards, and everything else that decides the output."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from typing import Any, Self

from pydantic import ValidationError

from models.config import Config
from pipeline.config import AnnotateConfig
from pipeline.cutting import ShardCutter
from pipeline.durable import file_sha256
from pipeline.errors import InputError, PlanError
from pipeline.inputs import InputFile, absolute, find_inputs
from pipeline.readers.base import scan_file, unreadable
from pipeline.readers.encodings import check_encoding
from pipeline.records import Shard
from pipeline.schema import SCHEMA_VERSION
from pipeline.signatures import ComponentIdentity, canonical_json, deciding_config, digest_of

PLAN_VERSION = 1


class Source(Config):
    """One input file as the planner found it."""

    uri: str
    """Absolute path."""
    format: str
    """text, jsonl or parquet."""
    size: int
    """Bytes on disk."""
    sha256: str
    """Of the bytes on disk, in hex."""
    records: int
    """How many records the plan takes from it."""


class Plan(Config):
    """A frozen run: equal plans give equal bytes on one build and CPU type."""

    plan_version: int = PLAN_VERSION
    schema_version: int
    generation: int = 0
    config: AnnotateConfig
    """Resolved: all paths absolute."""
    parser: ComponentIdentity
    tagger: ComponentIdentity
    tagger_folder: str
    """Where the tagger's bundle lies. The bundle counts, not its place: left out of the digest."""
    threads: int
    """Threads a worker computes with, equal for every executor."""
    sources: tuple[Source, ...]
    shards: tuple[Shard, ...]
    read: int
    """Records of the input in total, as the planner counted them."""
    ignored: int = 0
    """Files in the input's folders whose names say nothing of a format; they change nothing."""

    def to_json(self) -> bytes:
        """Give the canonical JSON text: sorted keys, no white space, equal for equal plans."""
        return canonical_json(self.model_dump(mode="json"))

    @classmethod
    def from_json(cls, content: bytes | str) -> Self:
        """Read a plan that to_json wrote.

        Raises:
            PlanError: when the text is not a plan of this version.
        """
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in fault["loc"])
            raise PlanError(
                f"expected a plan of version {PLAN_VERSION}, got one that does not fit ({place}: {fault['msg']});"
                " it was cut, or written by another release: give a new output folder"
            ) from None

    @cached_property
    def digest(self) -> str:
        """Sha256 in hex over everything that decides the output; see deciding_config for what does not."""
        return digest_of(self._deciding() | self.model_dump(mode="json", include={"sources", "shards"}))

    def difference(self, earlier: "Plan") -> list[str]:
        """Say in plain words what decides the output and is no longer as in an earlier plan.

        Empty if and only if the digests are equal.
        """
        then, now = _flat(earlier._deciding()), _flat(self._deciding())
        lines = [
            f"{key}: was {then.get(key)!r}, is now {now.get(key)!r}"
            for key in sorted(then.keys() | now.keys())
            if then.get(key) != now.get(key)
        ]
        lines += _changed_sources(earlier.sources, self.sources)
        if not lines and self.digest != earlier.digest:
            lines.append("shards: the same input is cut in another way, as by another release")
        return lines

    def _deciding(self) -> dict[str, Any]:
        """Give what decides the output but the input: plain values by section."""
        identities = {"plan_version", "schema_version", "generation", "parser", "tagger", "threads"}
        config = deciding_config(self.config)
        return self.model_dump(mode="json", include=identities) | {"config": config}


def make_plan(
    config: AnnotateConfig,
    *,
    parser: ComponentIdentity,
    tagger: ComponentIdentity,
    tagger_folder: str | Path,
    threads: int,
    hash_file: Callable[[Sequence[str]], list[str]] | None = None,
) -> Plan:
    """Look through the input once, in order, and cut it into shards.

    Time and memory are linear in the input; memory is about a hundred bytes a record, for the ids.

    Args:
        hash_file: gives the sha256 in hex of each of the files, in order; called for inputs of more than
            planning.hash_with_ray_bytes, others are hashed in this process.

    Raises:
        InputError: when there is nothing to read, or a file cannot be opened.
        StoreError: when reading fails half-way.
        ConfigError: when reader.encoding cannot be used.
    """
    config = config.model_copy(update={"input": absolute(config.input), "output": absolute(config.output)})
    inputs = find_inputs(config.input, output=config.output, format=config.reader.format)
    check_encoding(config.reader.encoding, line_based=any(file.format == "jsonl" for file in inputs.files))
    cutter = ShardCutter(config.planning.shard_bytes)
    scans = _scan(inputs.files, cutter, config)
    is_large = sum(scan.state[0] for scan in scans) > config.planning.hash_with_ray_bytes
    hash_all = hash_file if hash_file is not None and is_large else _hash_here
    digests = hash_all([scan.file.path for scan in scans])
    return Plan(
        schema_version=SCHEMA_VERSION,
        config=config,
        parser=parser,
        tagger=tagger,
        tagger_folder=str(tagger_folder),
        threads=threads,
        sources=tuple(_source(scan, digest) for scan, digest in zip(scans, digests, strict=True)),
        shards=cutter.finish(),
        read=cutter.records,
        ignored=len(inputs.ignored),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scan:
    """A file that was looked through: how it stood before, and how many records were taken."""

    file: InputFile
    state: tuple[int, int]
    records: int


def _scan(files: Sequence[InputFile], cutter: ShardCutter, config: AnnotateConfig) -> list[_Scan]:
    scans: list[_Scan] = []
    taken: set[bytes] = set()
    for file in files:
        room = None if config.limit is None else config.limit - cutter.records
        if room == 0:
            break
        state, before = _state(file.path), cutter.records
        found = scan_file(file.path, format=file.format, name=file.name, config=config.reader)
        for record in islice(found, room):
            cutter.add(file, record, is_duplicate=not _take(record.doc_id, taken))
        scans.append(_Scan(file=file, state=state, records=cutter.records - before))
    return scans


def _take(doc_id: str | None, taken: set[bytes]) -> bool:
    """Take an id, and say whether it was free; a record that cannot be read takes none."""
    if doc_id is None:
        return True
    # Sixteen bytes instead of the id: a collision among 1e9 ids has a chance of 1e-21.
    mark = sha256(doc_id.encode()).digest()[:16]
    if mark in taken:
        return False
    taken.add(mark)
    return True


def _state(path: str) -> tuple[int, int]:
    """Give a file's size in bytes and the time of its last change in nanoseconds."""
    try:
        status = Path(path).stat()
    except OSError as error:
        raise unreadable(path, error) from error
    if not S_ISREG(status.st_mode):
        raise InputError(f"{path}: expected a regular file; take it out of the input")
    return status.st_size, status.st_mtime_ns


def _hash_here(paths: Sequence[str]) -> list[str]:
    digests = []
    for path in paths:
        try:
            digests.append(file_sha256(Path(path)))
        except OSError as error:
            raise unreadable(path, error) from error
    return digests


def _source(scan: _Scan, digest: str) -> Source:
    if _state(scan.file.path) != scan.state:
        raise InputError(f"{scan.file.path}: changed while it was being planned; run again when it is complete")
    return Source(uri=scan.file.path, format=scan.file.format, size=scan.state[0], sha256=digest, records=scan.records)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, prefix="" if key == "config" else f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _changed_sources(earlier: Sequence[Source], later: Sequence[Source]) -> list[str]:
    then = {source.uri: source.sha256 for source in earlier}
    now = {source.uri: source.sha256 for source in later}
    changes = {
        "new": [uri for uri in now if uri not in then],
        "gone": [uri for uri in then if uri not in now],
        "changed": [uri for uri in now if uri in then and now[uri] != then[uri]],
    }
    return [f"input files {kind}: {_some(uris)}" for kind, uris in changes.items() if uris]


def _some(uris: Sequence[str]) -> str:
    shown = ", ".join(uris[:3])
    return f"{shown} and {len(uris) - 3} more" if len(uris) > 3 else shown
