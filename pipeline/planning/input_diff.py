"""How an input differs from what stands: which records are new or changed, and which parts are rewritten.

A record stands when its id stands with the same text in a shard that is current. Its rows then stay where they are,
byte for byte; where its file, name or meta are others, they are copied with the new ones. A record whose id does not
stand is looked for by its text among the documents that are gone: a renamed file costs no annotation. All other
records are annotated, in shards behind those that stand.

Where a record is within its file is no part of the comparison: a line that moved is as it was.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from concord.pipeline.config import AnnotateConfig, PlanningConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.output.dead_letters import ExistingDeadLetter
from concord.pipeline.plan import Changes, Piece, RenamedDocument, RowsToCopy, Shard, ShardRef
from concord.pipeline.planning.existing_output import ExistingOutput, fingerprint
from concord.pipeline.planning.inputs import InputFile
from concord.pipeline.planning.sharding import ShardCutter
from concord.pipeline.readers.fields import DUPLICATE_ID
from concord.pipeline.readers.read_file import read_piece
from concord.pipeline.readers.records import ScannedRecord

SMALL = 0.25
"""Of planning.shard_bytes, in characters: shards with less text are small."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """What is to be done about an input.

    Attributes:
        kept: committed shards that stay untouched.
        shards: those to be worked on.
    """

    kept: tuple[RowsToCopy, ...]
    shards: tuple[Shard, ...]
    changes: Changes


@dataclass(frozen=True, slots=True)
class _Pending:
    """A record that does not stand, with its number in its file; one that cannot be read has no id."""

    file: InputFile
    number: int
    record: ScannedRecord
    doc_id: str | None = None
    is_duplicate: bool = False
    text: bytes = b""
    meta: str | None = None
    attempts: int = 0


class Comparison:
    """Compares an input, file by file, with what stands."""

    def __init__(self, standing: ExistingOutput, config: AnnotateConfig, *, digests: Mapping[str, str]) -> None:
        """Begin with no file.

        Args:
            digests: sha256 in hex of every file of the input, by path.
        """
        self._standing = standing
        self._same = {uri for uri, file in standing.files.items() if digests.get(uri) == file.sha256}
        self._config = config
        self._taken: set[str] = set()
        self._kept: set[str] = set()
        self._kept_files: set[str] = set()
        self._moves: defaultdict[ShardRef, list[RenamedDocument]] = defaultdict(list)
        self._pending: list[_Pending] = []
        self._retried: set[tuple[str, int]] = set()
        self._held: set[tuple[str, int]] = set()
        self._refused: set[tuple[str, int]] = set()
        self._attempts: dict[tuple[str, int | str | None], int] = {}
        self._by_file: defaultdict[str, list[str]] = defaultdict(list)
        for doc_id, document in standing.documents.items():
            self._by_file[document.source_uri].append(doc_id)
        self._letters = Counter(letter.source_uri for letters in standing.letters.values() for letter in letters)
        self._outdated = {
            document.source_uri for document in standing.documents.values() if document.place not in standing.current
        } | {
            letter.source_uri
            for place, letters in standing.letters.items()
            if place not in standing.current
            for letter in letters
        }

    def stands(self, uri: str) -> bool:
        """Say whether a file is as it was, and all its records stand as documents or dead letters.

        A record that was refused because its id was taken may have it as soon as the other's file changes.
        """
        standing = self._standing
        if uri not in self._same or uri in self._outdated:
            return False
        if any(self._holder(doc_id) not in self._same for doc_id in standing.duplicates.get(uri, ())):
            return False
        return standing.files[uri].records == len(self._by_file.get(uri, ())) + self._letters[uri]

    def _holder(self, doc_id: str) -> str | None:
        """Give the file whose record has an id; None where no record is known to have it."""
        document = self._standing.documents.get(doc_id)
        return document.source_uri if document is not None else self._standing.refused.get(doc_id)

    def try_again(self, letters: Collection[ExistingDeadLetter]) -> None:
        """Have dead letters done again and leave all others as they are; their files are to be compared.

        Of a file that has changed since, whatever does not stand is done again: which letter is which record's is not
        known. This comes before any file is given.
        """
        chosen = {(letter.source_uri, letter.position) for letter in letters}
        changed = {letter.source_uri for letter in letters} - self._same
        self._retried = {place for place in chosen if place[0] not in changed}
        self._kept_files.update(uri for uri, _ in self._retried)
        # A document that stands keeps its id, also where its file comes later.
        standing = self._standing.documents
        self._refused = {
            (letter.source_uri, letter.position)
            for letter in letters
            if letter.source_uri not in changed
            and letter.doc_id is not None
            and letter.doc_id in standing
            and standing[letter.doc_id].source_uri in self._same
        }
        for letter in letters:
            mark = letter.doc_id if letter.source_uri in changed else letter.position
            if mark is not None:
                self._attempts[letter.source_uri, mark] = letter.attempts + 1
        for letter in chain.from_iterable(self._standing.letters.values()):
            if letter.source_uri not in changed and (letter.source_uri, letter.position) not in chosen:
                self._held.add((letter.source_uri, letter.position))
                if letter.doc_id is not None and letter.error != DUPLICATE_ID:
                    self._taken.add(letter.doc_id)

    def keep(self, uri: str) -> int:
        """Take a file that stands and give the number of its records. Such files come before all others."""
        self._kept_files.add(uri)
        self._kept.update(self._by_file.get(uri, ()))
        self._taken.update(self._by_file.get(uri, ()))
        return self._standing.files[uri].records

    def compare(self, file: InputFile, records: Sequence[ScannedRecord]) -> None:
        """Read a file that is new or has changed, or some of its first records, and compare them with what stands.

        Raises:
            InputError, StoreError: when it cannot be read.
        """
        if not records:
            return
        piece = Piece(
            uri=file.path, format=file.format, start=0, end=records[-1].end, records=len(records), name=file.name
        )
        outcomes = read_piece(piece, self._config.reader)
        for number, (record, outcome) in enumerate(zip(records, outcomes, strict=True)):
            self._compare(file, number, record, outcome)

    def finish(self) -> Difference:
        """Give what is to be done, once every file has been given."""
        self._find_moved()
        carries = list(self._carries())
        shards = list(self._cut())
        if shards or not all(carry.is_whole for carry in carries) or len(carries) < len(self._standing.reports):
            groups = _compacted(carries, self._standing, self._config.planning)
        else:
            # What stands is what is wanted: a run that finds nothing to do rewrites nothing.
            groups = []
        merged = {carry.shard for group in groups for carry in group}
        groups += [[carry] for carry in carries if carry.shard not in merged and not carry.is_whole]
        shards += [Shard(index=group[0].shard, carries=tuple(group)) for group in groups]
        return Difference(
            kept=tuple(carry for carry in carries if carry.is_whole and carry.shard not in merged),
            shards=tuple(sorted(shards, key=lambda shard: shard.index)),
            changes=self._changes(compacted=len(merged)),
        )

    def _compare(self, file: InputFile, number: int, record: ScannedRecord, outcome: Document | DeadLetter) -> None:
        place = (file.path, record.position)
        if place in self._held:
            return
        attempts = self._attempts.get((file.path, record.position if file.path in self._same else outcome.doc_id), 0)
        if isinstance(outcome, DeadLetter):
            self._pending.append(_Pending(file, number, record, attempts=attempts))
            return
        doc_id, text = outcome.doc_id, fingerprint(outcome.text)
        is_duplicate = place in self._refused or doc_id in self._taken
        if place not in self._refused:
            self._taken.add(doc_id)
        document = self._standing.documents.get(doc_id)
        if is_duplicate or document is None or document.text != text or document.place not in self._standing.current:
            self._pending.append(_Pending(file, number, record, doc_id, is_duplicate, text, outcome.meta, attempts))
            return
        self._kept.add(doc_id)
        if (document.source_uri, document.meta) != (outcome.source_uri, fingerprint(outcome.meta)):
            self._move(doc_id, outcome.doc_id, file, record, outcome.meta)

    def _move(self, was: str, doc_id: str, file: InputFile, record: ScannedRecord, meta: str | None) -> None:
        place = self._standing.documents[was].place
        self._moves[place].append(
            RenamedDocument(was=was, doc_id=doc_id, source_uri=file.path, source_position=record.position, meta=meta)
        )

    def _find_moved(self) -> None:
        """Take from the records that do not stand those whose text stands under an id that is gone."""
        standing = self._standing.documents
        gone: defaultdict[bytes, deque[str]] = defaultdict(deque)
        for was, document in standing.items():
            if was not in self._taken and document.place in self._standing.current:
                gone[document.text].append(was)
        left = []
        for pending in self._pending:
            doc_id = pending.doc_id
            if doc_id is None or pending.is_duplicate or doc_id in standing or not gone[pending.text]:
                left.append(pending)
                continue
            was = gone[pending.text].popleft()
            self._kept.add(was)
            self._move(was, doc_id, pending.file, pending.record, pending.meta)
        self._pending = left

    def _carries(self) -> Iterator[RowsToCopy]:
        """Give what is to be taken over of each current shard, unless it is nothing."""
        standing = self._standing
        documents: defaultdict[ShardRef, list[str]] = defaultdict(list)
        for doc_id, document in standing.documents.items():
            documents[document.place].append(doc_id)
        for place in sorted(standing.current, key=lambda place: (place.shard, place.generation)):
            own = documents[place]
            without = [doc_id for doc_id in own if doc_id not in self._kept]
            places = [(letter.source_uri, letter.position) for letter in standing.letters.get(place, ())]
            left_behind = {uri for uri, _ in places if uri not in self._kept_files}
            retried = self._retried.intersection(places)
            letters = sum(uri not in left_behind for uri, _ in places) - len(retried)
            records = len(own) - len(without) + letters
            if records:
                yield RowsToCopy(
                    shard=place.shard,
                    generation=place.generation,
                    records=records,
                    without=tuple(sorted([*without, *standing.outlived.get(place, ())])),
                    without_letters=tuple(sorted(left_behind)),
                    retried=tuple(sorted(retried)),
                    moves=tuple(self._moves[place]),
                )

    def _cut(self) -> tuple[Shard, ...]:
        """Cut the records that do not stand into shards behind all that do."""
        first = 1 + max((place.shard for place in self._standing.current), default=-1)
        cutter = ShardCutter(self._config.planning.shard_bytes, first_index=first)
        before: tuple[InputFile | None, int] = (None, 0)
        for pending in self._pending:
            if before != (pending.file, pending.number - 1):
                cutter.skip()
            before = (pending.file, pending.number)
            parse = self._parse_place(pending)
            cutter.add(
                pending.file,
                pending.record,
                is_duplicate=pending.is_duplicate,
                parse=parse,
                attempts=pending.attempts,
            )
        return cutter.finish()

    def _parse_place(self, pending: _Pending) -> ShardRef | None:
        """Give where the parse of a record stands; None where there is none or its parser is not today's."""
        document = self._standing.documents.get(pending.doc_id or "")
        if document is None or pending.is_duplicate or document.text != pending.text:
            return None
        return document.place if document.place in self._standing.parsed else None

    def _changes(self, *, compacted: int) -> Changes:
        standing = self._standing.documents
        stood = [item for item in self._pending if item.doc_id in standing and not item.is_duplicate]
        again = sum(standing[item.doc_id or ""].text == item.text for item in stood)
        retried = sum(
            item.attempts > 0 and (item.doc_id not in standing or item.is_duplicate) for item in self._pending
        )
        return Changes(
            new=len(self._pending) - len(stood) - retried,
            retried=retried,
            changed=len(stood) - again,
            moved=sum(map(len, self._moves.values())),
            removed=sum(doc_id not in self._kept and doc_id not in self._taken for doc_id in standing),
            again=again,
            parsed=sum(self._parse_place(item) is not None for item in stood),
            unchanged=len(self._kept),
            compacted=compacted,
        )


def _compacted(
    carries: Sequence[RowsToCopy], standing: ExistingOutput, config: PlanningConfig
) -> list[list[RowsToCopy]]:
    """Give the groups of small shards that are put together, each into one."""
    sizes = {
        carry.shard: standing.characters[ShardRef(shard=carry.shard, generation=carry.generation)] for carry in carries
    }
    small = [carry for carry in carries if sizes[carry.shard] < SMALL * config.shard_bytes]
    if config.compact_at is None or len(small) < config.compact_at:
        return []
    groups: list[list[RowsToCopy]] = []
    room = 0
    for carry in small:
        size = max(sizes[carry.shard], 1)
        if room < size:
            groups.append([])
            room = config.shard_bytes
        groups[-1].append(carry)
        room -= size
    return [group for group in groups if len(group) > 1]
