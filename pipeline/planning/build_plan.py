"""The plan of a run: its input cut into shards, and everything else that decides the output.

A collection is annotated in generations. The first plan covers the whole input; each later one keeps what is current
and covers what is new, changed, or due for another tagger.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import chain, islice
from pathlib import Path

from concord.pipeline.config import AnnotateConfig, ReaderConfig
from concord.pipeline.documents import Document
from concord.pipeline.errors import InputError
from concord.pipeline.identity import ComponentIdentity
from concord.pipeline.output.dead_letters import DeadLetterFilter, ExistingDeadLetter
from concord.pipeline.output.schema import SCHEMA_VERSION
from concord.pipeline.plan import Changes, Piece, Plan, Shard, Source
from concord.pipeline.planning.existing_output import ExistingOutput, fingerprint
from concord.pipeline.planning.file_hashes import FileHashes
from concord.pipeline.planning.input_diff import InputRecord, RecordToAnnotate, choose_retries, diff_input
from concord.pipeline.planning.inputs import InputFile, absolute_input, absolute_output, find_inputs, states_behind_url
from concord.pipeline.planning.next_generation import (
    Corrections,
    NextGeneration,
    annotated_corrections,
    cut_shards,
    next_generation,
)
from concord.pipeline.planning.text_field import check_text_field
from concord.pipeline.readers.encodings import check_encoding
from concord.pipeline.readers.read_file import LINE_BASED, read_piece, scan_file
from concord.pipeline.readers.records import ScannedRecord
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
    existing: ExistingOutput | None = None,
    reasons: Sequence[str] = (),
    hashes: FileHashes | None = None,
    name_documents: bool = False,
    corrections: Corrections | None = None,
) -> Plan:
    """Scan the input, in order, and cut what is to be done into shards.

    Time and memory are linear in the input. Memory is about a hundred bytes a record for the ids, and some hundred more
    where there is an existing collection to compare with.

    Args:
        existing: what the new generation builds on; None for the first one.
        reasons: why its rows are not current, in plain words.
        hashes: hashes the files; in this process and without a cache if None.
        name_documents: fill ``Plan.named``.
        corrections: those that the rows should have; none if None.

    Raises:
        InputError: when there is nothing to read, or when none of the first records has a text.
        StoreError: when the store of a URL cannot be reached.
    """
    output = config.output.model_copy(update={"path": absolute_output(config.output.path)})
    config = config.model_copy(update={"input": absolute_input(config.input), "output": output})
    inputs = find_inputs(config.input, output=config.output.path, format=config.reader.format)
    check_encoding(config.reader.encoding, line_based=any(file.format in LINE_BASED for file in inputs.files))
    hashes = hashes or FileHashes()
    if existing is None or not existing.current:
        # Existing documents that are current show that the field is right.
        check_text_field(inputs.files, config.reader)
    named: defaultdict[str, list[str]] | None = defaultdict(list) if name_documents else None
    if existing is None:
        sources, work = _plan_all(inputs.files, config, hashes, named, corrections or {})
    else:
        sources, work = _plan_changes(inputs.files, config, hashes, existing, named, corrections or {})
    files = inputs.files[: len(sources)]
    if is_url(config.input):
        # One more listing covers all files; looking at each would cost a request a file.
        states = states_behind_url(config.input)
        for file in files:
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
        shards=work.shards,
        kept=work.reused,
        corrected=dict(work.corrected),
        changes=work.changes,
        reasons=tuple(reasons) if work.changes.again else (),
        read=sum(source.records for source in sources),
        ignored=inputs.ignored,
        named={kind: tuple(ids) for kind, ids in (named or {}).items()},
        marks=_marks(files, work.shards),
    )


def retry_plan(
    base: Plan,
    config: AnnotateConfig,
    *,
    generation: int,
    existing: ExistingOutput,
    choice: DeadLetterFilter,
    hashes: FileHashes,
    corrections: Corrections,
) -> Plan:
    """Make the plan that tries chosen dead letters of a finished generation again and changes nothing else.

    Only the files that hold such dead letters are read. One that has changed is brought up to date with them; what is
    new or changed elsewhere in the input is left to the next plan of ``make_plan``.
    """
    chosen = [letter for letters in existing.dead_letters.values() for letter in letters if choice.matches(letter)]
    files = _files_with(chosen, config)
    states = {path: _state(file) for path, file in files.items()}
    digests = hashes.hash(states)
    counts = {source.uri: source.records for source in base.sources}
    limits = {path: None if config.limit is None else counts[path] for path in counts if path in files}
    records = (_read(files[path], config.reader, counts, most=most) for path, most in limits.items())
    retries = choose_retries(existing, chosen, unchanged=existing.unchanged_files(digests))
    reused_files = counts.keys() - files.keys()
    diff = diff_input(existing, chain.from_iterable(records), reused_files=reused_files, retries=retries)
    # Small shards are merged when the collection is next brought up to date.
    work = next_generation(existing, diff, config.planning.model_copy(update={"compact_at": None}), corrections)
    read_again = {source.uri: source for source in _sources(files.values(), states, digests, counts)}
    sources = tuple(read_again.get(source.uri, source) for source in base.sources)
    return Plan(
        schema_version=base.schema_version,
        generation=generation,
        config=config,
        parser=base.parser,
        tagger=base.tagger,
        tagger_folder=base.tagger_folder,
        threads=config.executor.threads or base.threads,
        sources=sources,
        shards=work.shards,
        kept=work.reused,
        corrected=dict(work.corrected),
        changes=work.changes,
        read=sum(source.records for source in sources),
        ignored=base.ignored,
        marks=_marks(list(files.values()), work.shards),
    )


def _plan_all(
    files: Sequence[InputFile],
    config: AnnotateConfig,
    hashes: FileHashes,
    named: defaultdict[str, list[str]] | None,
    corrections: Corrections,
) -> tuple[list[Source], NextGeneration]:
    """Plan to annotate every record."""
    states: dict[str, FileState] = {}
    counts: dict[str, int] = {}
    taken: set[bytes] = set()

    def records() -> Iterator[RecordToAnnotate]:
        room = config.limit
        for file in files:
            if room == 0:
                break
            states[file.path] = _state(file)
            count = 0
            for count, record in enumerate(_scan(file, config.reader, most=room), 1):
                if named is not None:
                    named["new"].append(_name(file, record))
                mark = fingerprint(record.doc_id)
                yield RecordToAnnotate(InputRecord(file, count - 1, record, record.doc_id), "new", mark in taken)
                # Fingerprints take less memory than ids; that of a record without an id is empty.
                if mark:
                    taken.add(mark)
            counts[file.path] = count
            room = room and room - count

    shards = cut_shards(records(), shard_bytes=config.planning.shard_bytes, corrections=corrections)
    digests = hashes.hash(states)
    sources = _sources(files[: len(states)], states, digests, counts)
    changes = Changes(new=sum(counts.values()))
    corrected = annotated_corrections(shards)
    return sources, NextGeneration(reused=(), shards=shards, changes=changes, corrected=corrected)


def _plan_changes(
    files: Sequence[InputFile],
    config: AnnotateConfig,
    hashes: FileHashes,
    existing: ExistingOutput,
    named: defaultdict[str, list[str]] | None,
    corrections: Corrections,
) -> tuple[list[Source], NextGeneration]:
    """Plan to annotate the records that are not current.

    Files that are reused come first: of two records with one id, the existing one keeps it.
    """
    states = {file.path: _state(file) for file in files}
    digests = hashes.hash(states)
    reusable = existing.reusable_files(digests)
    reused = [path for path in states if path in reusable]
    if config.limit is not None and not list(existing.files) == reused == list(states)[: len(reused)]:
        # How many records a limit leaves to a file depends on all files before it.
        reused = []
    counts = {path: existing.files[path].records for path in reused}

    def records() -> Iterator[InputRecord]:
        room = None if config.limit is None else config.limit - sum(counts.values())
        for file in (file for file in files if file.path not in counts):
            yield from _read(file, config.reader, counts, most=room)
            room = room and room - counts[file.path]

    diff = diff_input(existing, records(), reused_files=set(reused))
    if named is not None:
        for item in diff.to_annotate:
            named[item.reason].append(_name(item.record.file, item.record.scanned))
        for document in chain.from_iterable(diff.renamed.values()):
            is_same = document.was == document.doc_id
            named["moved"].append(document.doc_id if is_same else f"{document.was} -> {document.doc_id}")
        named["removed"] = sorted(diff.removed)
    return _sources(files, states, digests, counts), next_generation(existing, diff, config.planning, corrections)


def _files_with(letters: Sequence[ExistingDeadLetter], config: AnnotateConfig) -> dict[str, InputFile]:
    """Return the input files that hold dead letters, by path."""
    wanted = {letter.source_uri for letter in letters}
    if not wanted:
        return {}
    inputs = find_inputs(config.input, output=config.output.path, format=config.reader.format)
    files = {file.path: file for file in inputs.files if file.path in wanted}
    if gone := sorted(wanted - files.keys()):
        raise InputError(
            f"{gone[0]}: holds dead letters to be tried again, but is no longer in the input; "
            "'concord annotate' drops what is gone"
        )
    return files


def _name(file: InputFile, record: ScannedRecord) -> str:
    """Return the id of a record, or its place if it cannot be read."""
    return f"{file.name}:{record.position}" if record.doc_id is None else record.doc_id


def _state(file: InputFile) -> FileState:
    return file.state or file_state(file.path)


def _scan(file: InputFile, config: ReaderConfig, *, most: int | None) -> Iterator[ScannedRecord]:
    return islice(scan_file(file.path, format=file.format, name=file.name, config=config), most)


def _read(
    file: InputFile, config: ReaderConfig, counts: MutableMapping[str, int], *, most: int | None
) -> Iterator[InputRecord]:
    """Count the records of a file, up to ``most``, and read them."""
    scanned = list(_scan(file, config, most=most))
    counts[file.path] = len(scanned)
    if not scanned:
        return
    piece = Piece(uri=file.path, format=file.format, start=0, end=scanned[-1].end, records=len(scanned), name=file.name)
    for number, (record, outcome) in enumerate(zip(scanned, read_piece(piece, config), strict=True)):
        if isinstance(outcome, Document):
            content = fingerprint(outcome.text), outcome.meta, outcome.encoding
            yield InputRecord(file, number, record, outcome.doc_id, *content)
        else:
            yield InputRecord(file, number, record, outcome.doc_id)


def _sources(
    files: Iterable[InputFile], states: Mapping[str, FileState], digests: Mapping[str, str], counts: Mapping[str, int]
) -> list[Source]:
    sources = []
    for file in files:
        path, state = file.path, states[file.path]
        if file.state is None and file_state(path) != state:
            raise _changed(file)
        source = Source(uri=path, format=file.format, size=state.size, sha256=digests[path], records=counts[path])
        sources.append(source)
    return sources


def _changed(file: InputFile) -> InputError:
    return InputError(f"{file.path}: changed while it was being planned; run again when it is complete")


def _marks(files: Sequence[InputFile], shards: Sequence[Shard]) -> dict[str, str]:
    """Return the etags or times of the files behind URLs that are to be read, by path."""
    wanted = {piece.uri for shard in shards for piece in shard.pieces}
    states = {file.path: file.state for file in files if file.state is not None and file.path in wanted}
    return {path: str(state.changed) for path, state in states.items() if state.changed is not None}
