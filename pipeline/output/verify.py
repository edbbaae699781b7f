"""Verifying a finished run: compare everything below the output folder with its manifest."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from concord.pipeline.errors import IntegrityError, PlanError, ReconciliationError
from concord.pipeline.names.values import VALUES, value_of
from concord.pipeline.output.document_rows import spaced_text
from concord.pipeline.output.manifest import Manifest, PartFile, ShardReport, check_equation, read_commit_record
from concord.pipeline.output.output_folder import OutputFolder, part_fault
from concord.pipeline.output.schema import CANDIDATE, SCHEMA_VERSION, SCHEMAS, SHARD_TABLES, schema_version
from concord.pipeline.output.shard_stats import OF_TYPE, total_counts
from concord.pipeline.output.tables import is_english, normalize_name
from concord.pipeline.storage.files import file_sha256
from concord.pipeline.storage.output_paths import Listing, OutputPath, arrow_source

# A path and what is wrong there.
_Fault = tuple[OutputPath, str]
_Numbers = NDArray[np.int64]
_Texts = NDArray[np.object_]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A deviation from the manifest; ``place`` is a path below the output folder."""

    place: str
    problem: str


def verify(output: OutputPath, *, deep: bool = True) -> list[Finding]:
    """Compare a finished run's folder with its manifest.

    Checks the plan, every commit record, the totals per shard and overall, that every part exists with the right size,
    and that there are no orphans. ``deep`` adds the hash, rows and schema of every part, that document ids are unique,
    and that sentences, tokens and entities are complete and in order.

    Raises:
        PlanError: when the folder contains no run.
        IntegrityError: when the manifest cannot be read.
    """
    folder = OutputFolder(output)
    folder.generations.check_whole()
    current = folder.generations.current()
    if current is None:
        folder.plan()
        return [Finding(place="_run/manifest.json", problem="missing: the run is not finished; run the command again")]
    manifest = current.manifest()
    if folder.latest_generation() not in (None, manifest.generation):
        started = f"generation {folder.latest_generation()} was started but is not finished: run the command again"
        return [Finding(place="_run/plans", problem=started)]
    faults = _faults(folder, current.root, manifest, deep=deep)
    return [Finding(place=_place(path, folder.output, current.root), problem=problem) for path, problem in faults]


def _place(path: OutputPath, output: OutputPath, root: OutputPath) -> str:
    """Return a path below the output folder; that of a part is the one that leads to it through the folder's links."""
    return str(path).removeprefix(f"{root}/").removeprefix(f"{output}/")


def _faults(folder: OutputFolder, root: OutputPath, manifest: Manifest, *, deep: bool) -> Iterator[_Fault]:
    if folder.generations.history() and not folder.generations.is_settled():
        yield folder.manifest_path, "it, or a table, does not lead to the newest generation; run the command again"
    yield from _plan_faults(folder, manifest)
    seen: set[str] = set()
    listing = Listing(folder.output)
    for report in manifest.shards:
        yield from _record_faults(folder, report)
        broken = [*shard_faults(root, report, listing, deep=deep)]
        yield from broken
        if deep and not broken:
            paths = {name: root / part.path for name, part in report.files.items()}
            yield from _content_faults(report, paths, seen=seen)
    yield from names_faults(root, manifest, listing, deep=deep)
    orphan = "orphan: left by a run that was killed or overtaken; no manifest names it, and the next run removes it"
    yield from ((path, orphan) for path in folder.orphans(manifest))


def _plan_faults(folder: OutputFolder, manifest: Manifest) -> Iterator[_Fault]:
    if manifest.schema_version != SCHEMA_VERSION:
        problem = f"expected schema version {SCHEMA_VERSION}, got {manifest.schema_version}; annotate the input again"
        yield folder.manifest_path, problem
    try:
        plan = folder.plan(manifest.generation)
    except PlanError as error:
        yield folder.plan_path(manifest.generation), str(error)
        return
    planned = {shard.index: shard.records for shard in plan.shards}
    planned |= {rows.shard: rows.records for rows in plan.reused}
    reported = {report.shard: report.read for report in manifest.shards}
    if plan.digest != manifest.plan:
        yield folder.manifest_path, "the manifest was made by another plan"
    if planned != reported:
        yield folder.manifest_path, "its shards or their records are not those of the plan"
    if plan.read != manifest.read or sum(reported.values()) != manifest.read:
        problem = f"{plan.read} records were planned, but the manifest says that {manifest.read} were read"
        yield folder.manifest_path, problem
    try:
        check_equation(manifest, where="in total")
    except ReconciliationError as error:
        yield folder.manifest_path, str(error)


def _record_faults(folder: OutputFolder, report: ShardReport) -> Iterator[_Fault]:
    path = folder.record_path(report.shard, generation=report.generation)
    try:
        if read_commit_record(path) != report:
            yield path, "missing, or not what the manifest says"
        check_equation(report, where=f"shard {report.shard:05d}")
    except (IntegrityError, ReconciliationError) as error:
        yield path, str(error)


def shard_faults(root: OutputPath, report: ShardReport, listing: Listing, *, deep: bool = True) -> Iterator[_Fault]:
    """Yield the parts of a shard that are missing or damaged, with what is wrong; ``deep`` compares their hashes."""
    expected = set(SHARD_TABLES) - {"errors"} | ({"errors"} if report.dead_letters else set())
    for name in sorted(expected - set(report.files)):
        yield root / name, f"shard {report.shard:05d} has no part of this table"
    yield from _part_faults(root, report.files.values(), listing, deep=deep)


def names_faults(root: OutputPath, manifest: Manifest, listing: Listing, *, deep: bool = True) -> Iterator[_Fault]:
    """Yield what is wrong with the table of names; ``deep`` reads it."""
    if manifest.names is None:
        yield root / "names", "the manifest names no part of this table; run the command again"
        return
    broken = [*_part_faults(root, [manifest.names], listing, deep=deep)]
    yield from broken
    if not deep or broken:
        return
    path = root / manifest.names.path
    names = pq.ParquetFile(arrow_source(path), page_checksum_verification=True).read()
    counts = total_counts(manifest.shards)
    mentions = counts["entities"] - sum(counts.get(f"{OF_TYPE}{label}", 0) for label in VALUES)
    if fault := _shape_fault(names, "names", rows=manifest.names.rows):
        yield path, fault
    elif (pc.sum(names["mentions"]).as_py() or 0) != mentions:
        yield path, f"expected {mentions} mentions in all, as there are entities that are names"
    elif pc.count_distinct(names["name_id"]).as_py() != names.num_rows:
        yield path, "name_id occurs twice"


def _part_faults(root: OutputPath, parts: Iterable[PartFile], listing: Listing, *, deep: bool) -> Iterator[_Fault]:
    for part in parts:
        path = root / part.path
        fault = part_fault(root / part.path, part, listing.size)
        try:
            if fault is None and deep and file_sha256(path) != part.sha256:
                fault = "its bytes are not those that were committed (SHA-256 differs)"
        except OSError as error:
            fault = f"cannot be read: {error.strerror}"
        if fault is not None:
            yield path, fault


def _content_faults(report: ShardReport, paths: Mapping[str, OutputPath], *, seen: set[str]) -> Iterator[_Fault]:
    """Read a shard's parts and yield what is wrong with their content.

    Args:
        paths: the parts by table name.
        seen: ids of the documents of earlier shards; those of this shard are added.
    """
    tables: dict[str, pa.Table] = {}
    for name, path in paths.items():
        try:
            tables[name] = pq.ParquetFile(arrow_source(path), page_checksum_verification=True).read()
        except (pa.ArrowException, OSError) as error:
            yield path, f"cannot be read: {error}"
            return
        fault = _shape_fault(tables[name], name, rows=report.files[name].rows)
        if fault:
            yield path, fault
            return
    yield from _document_faults(report, tables, paths, seen=seen)
    for name, check in _CHECKS.items():
        yield from ((paths[name], problem) for problem in check(tables))


def _shape_fault(table: pa.Table, name: str, *, rows: int) -> str | None:
    version = schema_version(table.schema)
    if version != SCHEMA_VERSION:
        return f"expected schema version {SCHEMA_VERSION}, got {version}"
    if not table.schema.equals(SCHEMAS[name]):
        return f"its columns are not those of {name}"
    if table.num_rows != rows:
        return f"expected {rows} rows, got {table.num_rows}"
    return None


def _document_faults(
    report: ShardReport, tables: Mapping[str, pa.Table], paths: Mapping[str, OutputPath], *, seen: set[str]
) -> Iterator[_Fault]:
    ids = tables["documents"]["doc_id"].to_pylist()
    if len(ids) != report.annotated + report.unchanged:
        expected = f"{report.annotated} annotated and {report.unchanged} unchanged documents"
        yield paths["documents"], f"expected {expected}, got {len(ids)}"
    dead_letters = tables["errors"].num_rows if "errors" in tables else 0
    if dead_letters != report.dead_letters:
        yield paths["documents"], f"expected {report.dead_letters} dead letters, got {dead_letters}"
    texts, digests = (tables["documents"][name].to_pylist() for name in ("raw_text", "text_sha256"))
    all_parts = tables["documents"]["parts"].to_pylist()
    for doc_id, text, digest, parts in zip(ids, texts, digests, all_parts, strict=True):
        if text is not None and sha256(text.encode()).hexdigest() != digest:
            yield paths["documents"], f"raw_text of document {doc_id!r} does not match its SHA-256"
        if parts is not None and text is None:
            yield paths["documents"], f"document {doc_id!r} has parts, but no raw_text in which they begin"
        starts = [part["start"] for part in parts or ()]
        if starts != sorted(starts) or (starts and not 0 <= starts[0] <= starts[-1] <= len(text or "")):
            yield paths["documents"], f"parts of document {doc_id!r} are out of order, or leave its text"
    for doc_id in ids:
        if doc_id in seen:
            yield paths["documents"], f"document {doc_id!r} occurs twice"
        seen.add(doc_id)


def _sentence_problems(tables: Mapping[str, pa.Table]) -> Iterator[str]:
    documents, sentences, tokens = tables["documents"], tables["sentences"], tables["tokens"]
    counts = _numbers(documents, "n_sentences")
    if not _same(sentences["doc_id"], np.repeat(_texts(documents, "doc_id"), counts)):
        yield "its documents are not those of documents, in order"
    if not np.array_equal(_numbers(sentences, "sent_id"), _counting_up(counts, first=0)):
        yield "sent_id does not count from 0 in each document"
    lengths = _numbers(sentences, "n_tokens")
    if lengths.sum() != tokens.num_rows or (lengths < 1).any():
        yield "n_tokens does not add up to the rows of tokens"
        return
    last = np.cumsum(lengths) - 1
    if not np.array_equal(_numbers(sentences, "start_char"), _numbers(tokens, "start_char")[last - lengths + 1]):
        yield "start_char is not that of the first word"
    if not np.array_equal(_numbers(sentences, "end_char"), _numbers(tokens, "end_char")[last]):
        yield "end_char is not that of the last word"


def _token_problems(tables: Mapping[str, pa.Table]) -> Iterator[str]:
    documents, sentences, tokens = tables["documents"], tables["sentences"], tables["tokens"]
    counts, lengths = _numbers(documents, "n_tokens"), _numbers(sentences, "n_tokens")
    if not _same(tokens["doc_id"], np.repeat(_texts(documents, "doc_id"), counts)):
        yield "its documents are not those of documents, in order"
        return
    if not np.array_equal(_numbers(tokens, "sent_id"), np.repeat(_numbers(sentences, "sent_id"), lengths)):
        yield "its sentences are not those of sentences, in order"
        return
    if not np.array_equal(_numbers(tokens, "token_id"), _counting_up(lengths, first=1)):
        yield "token_id does not count from 1 in each sentence"
    # A parser may make trees in some languages only.
    has_head = _integers(tokens["head"].is_valid().cast(pa.int64()))
    headed = np.bincount(np.repeat(np.arange(len(counts)), counts), has_head, len(counts))
    if ((headed > 0) & (headed < counts)).any():
        yield "some words of a document have a head, and others none"
    heads = _integers(tokens["head"].drop_null())
    if (heads < 0).any() or (heads > np.repeat(lengths, lengths)[has_head > 0]).any():
        yield "a head is not in its sentence"
    starts, ends = _numbers(tokens, "start_char"), _numbers(tokens, "end_char")
    if (starts < 0).any() or (ends <= starts).any() or (ends > np.repeat(_numbers(documents, "n_chars"), counts)).any():
        yield "offsets leave the document"
    shared = (starts[1:] == starts[:-1]) & (ends[1:] == ends[:-1])
    first_words = np.cumsum(counts) - counts
    starts_document = np.zeros(len(starts), dtype=bool)
    starts_document[first_words[first_words < len(starts)]] = True
    if ((starts[1:] < ends[:-1]) & ~shared & ~starts_document[1:]).any():
        yield "words overlap or are out of order"
    if not np.array_equal(_lengths(tokens["text"]), ends - starts):
        yield "text is not as long as its offsets say"


def _entity_problems(tables: Mapping[str, pa.Table]) -> Iterator[str]:
    documents, entities = tables["documents"], tables["entities"]
    counts = _numbers(documents, "n_entities") + _numbers(documents, "n_candidates")
    if not _same(entities["doc_id"], np.repeat(_texts(documents, "doc_id"), counts)):
        yield "its documents are not those of documents, in order"
    if not np.array_equal(_numbers(entities, "entity_id"), _counting_up(counts, first=0)):
        yield "entity_id does not count from 0 in each document"
    elif not np.array_equal(
        _numbers(entities, "entity_id") >= np.repeat(_numbers(documents, "n_entities"), counts),
        _texts(entities, "source") == CANDIDATE,
    ):
        yield "its candidates are not the last rows of each document"
    lengths = _numbers(entities, "end_char") - _numbers(entities, "start_char")
    if not np.array_equal(_lengths(entities["text"]), lengths):
        yield "text is not as long as its offsets say"
    if entities["name"].to_pylist() != [*map(normalize_name, entities["text"].to_pylist())]:
        yield "name is not text with single spaces"
    texts = _spaced_texts(tables["tokens"])
    places = zip(*(entities[name].to_pylist() for name in ("label", "doc_id", "start_char", "end_char")), strict=True)
    said = zip(*(tables["documents"][name].to_pylist() for name in ("doc_id", "language", "parser")), strict=True)
    english = {doc_id for doc_id, language, parser in said if is_english(language, parser)}
    expected = [
        value_of(label, texts.get(doc_id, ""), *span) if doc_id in english else None for label, doc_id, *span in places
    ]
    if entities["value"].to_pylist() != expected:
        yield "value is not the normal form of what the text says there"
    persons = list(zip(_texts(entities, "doc_id"), _numbers(entities, "identity").tolist(), strict=True))
    full_names = zip(persons, *(entities[name].to_pylist() for name in ("canonical", "label")), strict=True)
    if len(set(persons)) != len(set(full_names)):
        yield "identity has two canonical names or labels"


def _spaced_texts(tokens: pa.Table) -> dict[str, str]:
    """Return the text of each document, with spaces for what is in no word: white space and invisible characters."""
    words: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    columns = (tokens[name].to_pylist() for name in ("doc_id", "start_char", "text"))
    for doc_id, start, text in zip(*columns, strict=True):
        words[doc_id].append((start, text))
    return {doc_id: spaced_text(own) for doc_id, own in words.items()}


_CHECKS: dict[str, Callable[[Mapping[str, pa.Table]], Iterator[str]]] = {
    "sentences": _sentence_problems,
    "tokens": _token_problems,
    "entities": _entity_problems,
}


def _numbers(table: pa.Table, name: str) -> _Numbers:
    return _integers(table[name])


def _texts(table: pa.Table, name: str) -> _Texts:
    return np.asarray(table[name].to_pylist(), dtype=object)


def _lengths(texts: pa.ChunkedArray) -> _Numbers:
    return _integers(pc.utf8_length(texts))


def _integers(column: pa.ChunkedArray) -> _Numbers:
    # Not by to_numpy, which imports pandas.
    return np.asarray(np.from_dlpack(column.combine_chunks()), dtype=np.int64)


def _same(column: pa.ChunkedArray, expected: _Texts) -> bool:
    return bool(column.to_pylist() == expected.tolist())


def _counting_up(counts: _Numbers, *, first: int) -> _Numbers:
    """Count up from ``first`` once for each count: counts 2, 3 with first 0 return 0 1 0 1 2."""
    ends = np.cumsum(counts)
    return np.asarray(np.arange(counts.sum()) - np.repeat(ends - counts, counts) + first, dtype=np.int64)
