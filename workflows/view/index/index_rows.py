"""The rows of the search index, computed from the tables of a shard in Arrow and numpy, and how words are folded."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from concord.pipeline.names.identities import name_key
from concord.pipeline.output.shard_stats import is_changed
from concord.pipeline.output.tables import normalize_name, title_of, without_candidates

INNER_SPACE = "\ue000"
"""Stands for white space inside a word, which would split it."""

# Accents of Latin, Greek and Cyrillic; points of Hebrew; vowel signs and hamza of Arabic. Marks of other scripts stay:
# in Hindi they are the vowels of a word.
_MARKS = re.compile(
    "[\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
)


def fold(text: str) -> str:
    """Return a text without case, accents and width."""
    if text.isascii():
        return text.lower()
    bare = _MARKS.sub("", unicodedata.normalize("NFKD", text.replace("\u2019", "'")))
    return unicodedata.normalize("NFC", bare.casefold())


def fold_word(word: str) -> str:
    """Return a word as the table words of the index has it: still one word, and as it is where SQLite folds it."""
    return word if word.isascii() else re.sub(r"\s", INNER_SPACE, fold(word)) or word


GLUE = "\x1f"
"""Between two words of a sentence that no white space separates; a space is between all others."""
SHARED = "\ue001"
"""Stands for a word of a multi-word token but the first, all of which share one slice of the text."""

_DATE = re.compile(r"(\d{4})-(0[1-9]|1[0-2])(?!\d)")
_LARGEST = 2**63 - 1

Numbers = NDArray[Any]


def document_rows(
    documents: pa.Table, tokens: pa.Table, *, base: int, generations: Sequence[int]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the table documents of the index, without the lowest confidence.

    Args:
        base: number of the first document; the others follow.
        generations: in which each was annotated.
    """
    places = {name: _starts(documents[name]) for name in ("n_sentences", "n_tokens")}
    places["n_entities"] = _starts(pc.add(documents["n_entities"], documents["n_candidates"]))
    first, end = places["n_tokens"][:-1], places["n_tokens"][1:]
    changed, refined = (_running_sum(values) for values in (is_changed(tokens), tokens["refined"].to_numpy()))
    uncertainty = _largest(tokens["uncertainty"].to_numpy(), first, end)
    numbers = range(documents.num_rows)
    yield from zip(
        (base + number for number in numbers),
        documents["source_position"].to_pylist(),
        documents["doc_id"].to_pylist(),
        map(title_of, documents["meta"].to_pylist()),
        documents["source_uri"].to_pylist(),
        documents["tagger"].to_pylist(),
        generations,
        (base + places["n_sentences"][:-1]).tolist(),
        *(places[name][:-1].tolist() for name in ("n_tokens", "n_entities")),
        *(documents[name].to_pylist() for name in ("n_chars", "n_sentences", "n_tokens", "n_entities")),
        (refined[end] - refined[first]).tolist(),
        (changed[end] - changed[first]).tolist(),
        uncertainty.tolist(),
        (None for _ in numbers),
        strict=True,
    )


def meta_rows(
    metas: Sequence[str | None], languages: Sequence[str | None], *, base: int
) -> Iterator[tuple[int, str, str | float, str | None]]:
    """Yield the rows of the table meta of the index: each text or number of a field, and its year if it is a date.

    A list is a value for each of its items; a field of a field is called ``author.name``. The language of a text is a
    field as well, unless the metadata has one of this name.
    """
    for number, (meta, language) in enumerate(zip(metas, languages, strict=True), base):
        fields = orjson.loads(meta or "{}")
        fields = {"language": language, **(fields if isinstance(fields, dict) else {})}
        for name, value in dict.fromkeys(_leaves(fields)):
            date = _DATE.match(value) if isinstance(value, str) else None
            yield number, name, value, date and date[1]


def _leaves(fields: dict[str, Any]) -> Iterator[tuple[str, str | float]]:
    waiting = [*fields.items()]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{name}.{inner}", leaf) for inner, leaf in value.items()]
        elif isinstance(value, list):
            waiting += [(name, item) for item in value]
        elif isinstance(value, bool) or (isinstance(value, int) and abs(value) > _LARGEST):
            # SQLite has whole numbers of eight bytes, and no true or false.
            yield name, str(value).lower()
        elif value not in (None, ""):
            yield name, value


def entity_rows(
    documents: pa.Table, sentences: pa.Table, tokens: pa.Table, entities: pa.Table, *, base: int
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the table entities of the index; one is changed if stage two changed any of its words."""
    entities, counts = without_candidates(entities), documents["n_entities"].to_numpy()
    document = np.repeat(np.arange(documents.num_rows), counts)
    sentence = _starts(documents["n_sentences"])[document] + entities["sent_id"].to_numpy()
    word = _starts(sentences["n_tokens"])[sentence]
    changed = _running_sum(is_changed(tokens))
    first, end = (word + entities[name].to_numpy() for name in ("start_token", "end_token"))
    canonical = entities["canonical"].to_pylist()
    differs = changed[np.minimum(end, len(changed) - 1)] > changed[first - 1]
    yield from zip(
        (base + document).tolist(),
        *(entities[name].to_pylist() for name in ("entity_id", "sent_id", "start_char", "end_char")),
        *(entities[name].to_pylist() for name in ("start_token", "end_token", "label")),
        map(normalize_name, entities["text"].to_pylist()),
        canonical,
        map(name_key, canonical, entities["label"].to_pylist()),
        *(entities[name].to_pylist() for name in ("confidence", "uncertainty")),
        entities["refined"].to_numpy().astype(int).tolist(),
        differs.astype(int).tolist(),
        entities["source"].to_pylist(),
        strict=True,
    )


def sentence_rows(sentences: pa.Table, tokens: pa.Table) -> Iterator[tuple[str, str, str | None]]:
    """Yield the words of each sentence and their lemmas, both to be searched, and the words to be shown.

    All have the same number of words. Those to be shown are None where they are those searched.
    """
    starts, ends = (tokens[name].to_numpy() for name in ("start_char", "end_char"))
    offsets = _starts(sentences["n_tokens"])
    is_first = np.zeros(tokens.num_rows + 1, dtype=bool)
    is_first[offsets] = True
    is_first = is_first[:-1]
    shares = ~is_first & (np.roll(starts, 1) == starts) & (np.roll(ends, 1) == ends)
    spaced = np.roll(ends, 1) < starts
    separators = pa.array(np.where(is_first, "", np.where(spaced, " ", GLUE)), pa.string())
    shown, forms = (
        _joined(pc.binary_join_element_wise(separators, pc.if_else(pa.array(shares), SHARED, words), ""), offsets, "")
        for words in _cleaned(tokens["text"])
    )
    _, lemmas = _cleaned(pc.coalesce(tokens["lemma"], tokens["text"]))
    for form, lemma, original in zip(forms, _joined(lemmas, offsets, " "), shown, strict=True):
        yield form, lemma, None if original == form else original


def _joined(words: pa.Array, offsets: Numbers, separator: str) -> Sequence[str]:
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), words)
    joined: list[str] = pc.binary_join(lists, separator).to_pylist()
    return joined


def _cleaned(words: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Return words without the characters that separate words, and folded; an empty one is a placeholder."""
    encoded = words.combine_chunks().dictionary_encode()
    clean = pc.replace_substring_regex(encoded.dictionary, r"[\pZ\p{Cc}]", INNER_SPACE)
    clean = pc.if_else(pc.equal(clean, ""), INNER_SPACE, clean)
    folded = pa.array(map(fold_word, clean.to_pylist()), pa.string())
    return clean.take(encoded.indices), folded.take(encoded.indices)


def _starts(counts: pa.ChunkedArray) -> Numbers:
    """Return where each of some runs of rows starts, and where the last one ends."""
    return _running_sum(counts.to_numpy())


def _running_sum(values: Numbers) -> Numbers:
    return np.concatenate([[0], np.cumsum(values, dtype=np.int64)])


def _largest(values: Numbers, first: Numbers, end: Numbers) -> Numbers:
    """Return the largest value of each run; 0 for an empty one."""
    largest = np.zeros(len(first), dtype=np.float64)
    if len(values):
        some = end > first
        largest[some] = np.maximum.reduceat(values, first[some])
    return largest
