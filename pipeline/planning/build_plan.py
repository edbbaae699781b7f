"""The plan of a run: its input cut into shards, and everything else that decides the output.

A collection is annotated in generations. The first plan covers the whole input; each further one keeps what stands
and covers what is new, changed, or due for another tagger.
"""

from collections.abc import Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path

from concord.pipeline.config import AnnotateConfig
from concord.pipeline.errors import InputError
from concord.pipeline.identity import (
    ComponentIdentity,
)
from concord.pipeline.output.dead_letters import DeadLetterFilter, ExistingDeadLetter
from concord.pipeline.output.schema import SCHEMA_VERSION
from concord.pipeline.plan import Changes, Plan, Shard, Source
from concord.pipeline.planning.existing_output import ExistingOutput
from concord.pipeline.planning.file_hashes import FileHashes
from concord.pipeline.planning.input_diff import Comparison, Difference
from concord.pipeline.planning.inputs import InputFile, absolute_input, absolute_output, find_inputs, states_behind_url
from concord.pipeline.planning.sharding import ShardCutter
from concord.pipeline.readers.encodings import check_encoding
from concord.pipeline.readers.read_file import scan_file
from concord.pipeline.storage.files import file_state
from concord.pipeline.storage.remote_files import FileState
from concord.pipeline.storage.urls import is_url


def make_plan(
    config: AnnotateConfig,
    *,
    parser: ComponentIdentity,
    tagger: ComponentIdentity,
    tagger_folder: str | Path,
    threads: int,
    generation: int = 0,
    standing: ExistingOutput | None = None,
    reasons: Sequence[str] = (),
    hashes: FileHashes | None = None,
) -> Plan:
    """Look through the input, in order, and cut what is to be done into shards.

    Time and memory are linear in the input; memory is about a hundred bytes a record for the ids, and some hundred
    more where there is a standing collection to compare with.

    Args:
        standing: what the new generation builds on; None for the first one.
        reasons: why it is not current, in plain words.
        hashes: gives the hashes of files; computes each in this process if None.

    Raises:
        InputError: when there is nothing to read, or a file cannot be opened.
        StoreError: when reading fails half-way.
        ConfigError: when reader.encoding cannot be used.
    """
    config = config.model_copy(update={"input": absolute_input(config.input), "output": absolute_output(config.output)})
    inputs = find_inputs(config.input, output=config.output, format=config.reader.format)
    check_encoding(config.reader.encoding, line_based=any(file.format == "jsonl" for file in inputs.files))
    hashes = hashes or FileHashes()
    if standing is None:
        sources, difference = _plan_all(inputs.files, config, hashes)
    else:
        sources, difference = _plan_changes(inputs.files, config, hashes, standing)
    read = inputs.files[: len(sources)]
    if is_url(config.input):
        # One more listing tells of all files; looking at each would cost a request a file.
        states = states_behind_url(config.input)
        for file in read:
            if states.get(file.path) != file.state:
                raise _changed(file)
    return Plan(
        schema_version=SCHEMA_VERSION,
        generation=generation,
        config=config,
        parser=parser,
        tagger=tagger,
        tagger_folder=str(tagger_folder),
        threads=threads,
        sources=tuple(sources),
        shards=difference.shards,
        kept=difference.kept,
        changes=difference.changes,
        reasons=tuple(reasons) if difference.changes.again else (),
        read=sum(source.records for source in sources),
        ignored=len(inputs.ignored),
        marks=_marks(read, difference.shards),
    )


def retry_plan(
    base: Plan,
    config: AnnotateConfig,
    *,
    generation: int,
    standing: ExistingOutput,
    choice: DeadLetterFilter,
    hashes: FileHashes,
) -> Plan:
    """Make the plan that tries chosen dead letters of a finished generation again and touches nothing else.

    Only the files that hold such letters are looked at. One that has changed is brought up to date with them; what is
    new or changed elsewhere in the input is left to the next plan of ``make_plan``.

    Raises:
        InputError, StoreError: when a file that holds one is gone or cannot be read.
    """
    letters = [letter for letters in standing.letters.values() for letter in letters if choice.matches(letter)]
    files = _files_of(letters, config)
    states = {path: file.state or file_state(path) for path, file in files.items()}
    digests = dict(zip(states, hashes.of(list(states), list(states.values())), strict=True))
    # Small shards are put together when the collection is next brought up to date.
    planning = config.planning.model_copy(update={"compact_at": None})
    comparison = Comparison(standing, config.model_copy(update={"planning": planning}), digests=digests)
    comparison.try_again(letters)
    sources = []
    for source in base.sources:
        if source.uri not in files:
            comparison.keep(source.uri)
    for source in base.sources:
        file = files.get(source.uri)
        if file is None:
            sources.append(source)
            continue
        found = scan_file(file.path, format=file.format, name=file.name, config=config.reader)
        records = list(islice(found, source.records if config.limit is not None else None))
        comparison.compare(file, records)
        sources.append(_source(file, states[file.path], digests[file.path], len(records)))
    difference = comparison.finish()
    return Plan(
        schema_version=base.schema_version,
        generation=generation,
        config=config,
        parser=base.parser,
        tagger=base.tagger,
        tagger_folder=base.tagger_folder,
        threads=config.executor.threads or base.threads,
        sources=tuple(sources),
        shards=difference.shards,
        kept=difference.kept,
        changes=difference.changes,
        read=sum(source.records for source in sources),
        ignored=base.ignored,
        marks=_marks(list(files.values()), difference.shards),
    )


def _files_of(letters: Sequence[ExistingDeadLetter], config: AnnotateConfig) -> dict[str, InputFile]:
    """Give the input files that hold dead letters, by path."""
    wanted = {letter.source_uri for letter in letters}
    if not wanted:
        return {}
    inputs = find_inputs(config.input, output=config.output, format=config.reader.format)
    files = {file.path: file for file in inputs.files if file.path in wanted}
    if gone := sorted(wanted - files.keys()):
        raise InputError(
            f"{gone[0]}: holds dead letters that are to be tried again, and is gone from the input; "
            "'concord annotate' drops what is gone"
        )
    return files


def _plan_all(
    files: Sequence[InputFile], config: AnnotateConfig, hashes: FileHashes
) -> tuple[list[Source], Difference]:
    """Plan to annotate every record."""
    cutter = ShardCutter(config.planning.shard_bytes)
    states: list[FileState] = []
    records: list[int] = []
    taken: set[bytes] = set()
    for file in files:
        room = None if config.limit is None else config.limit - cutter.records
        if room == 0:
            break
        states.append(file.state or file_state(file.path))
        before = cutter.records
        found = scan_file(file.path, format=file.format, name=file.name, config=config.reader)
        for record in islice(found, room):
            cutter.add(file, record, is_duplicate=not _take(record.doc_id, taken))
        records.append(cutter.records - before)
    read = files[: len(states)]
    sources = list(map(_source, read, states, hashes.of([file.path for file in read], states), records))
    return sources, Difference(kept=(), shards=cutter.finish(), changes=Changes(new=cutter.records))


def _plan_changes(
    files: Sequence[InputFile], config: AnnotateConfig, hashes: FileHashes, standing: ExistingOutput
) -> tuple[list[Source], Difference]:
    """Plan to annotate the records that do not stand.

    Files that stand as they are come first: of two records with one id the one that stands keeps it.
    """
    paths = [file.path for file in files]
    states = [file.state or file_state(file.path) for file in files]
    digests = hashes.of(paths, states)
    comparison = Comparison(standing, config, digests=dict(zip(paths, digests, strict=True)))
    stand = [path for path in paths if comparison.stands(path)]
    if config.limit is not None and not list(standing.files) == stand == paths[: len(stand)]:
        # How many records a limit leaves to a file goes by all files before it.
        stand = []
    records = {path: comparison.keep(path) for path in stand}
    room = None if config.limit is None else config.limit - sum(records.values())
    for file in files:
        if file.path not in records:
            found = scan_file(file.path, format=file.format, name=file.name, config=config.reader)
            chosen = list(islice(found, room))
            comparison.compare(file, chosen)
            records[file.path] = len(chosen)
            room = room and room - len(chosen)
    counts = [records[path] for path in paths]
    return list(map(_source, files, states, digests, counts)), comparison.finish()


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


def _source(file: InputFile, state: FileState, digest: str, records: int) -> Source:
    if file.state is None and file_state(file.path) != state:
        raise _changed(file)
    return Source(uri=file.path, format=file.format, size=state.size, sha256=digest, records=records)


def _changed(file: InputFile) -> InputError:
    return InputError(f"{file.path}: changed while it was being planned; run again when it is complete")


def _marks(files: Sequence[InputFile], shards: Sequence[Shard]) -> dict[str, str]:
    """Give the marks of the files behind URLs that are to be read."""
    wanted = {piece.uri for shard in shards for piece in shard.pieces}
    states = {file.path: file.state for file in files if file.state is not None and file.path in wanted}
    return {path: str(state.changed) for path, state in states.items() if state.changed is not None}
