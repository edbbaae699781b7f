"""Sentences, vocabularies and batches: where text becomes tensors, once.

Shape letters used everywhere: B sentences of a batch, T words of a sentence, C characters of a word, H hidden
units, L labels, S memory slots, M Monte-Carlo weight samples.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from concord.models.labels import Scheme, from_gold, label_set, split_label

PADDING = 0
UNKNOWN = 1
IGNORED_LABEL = -100
WORD_CASES = 4
DigitRule = Literal["each", "runs", "keep"]
_DIGIT = re.compile(r"\d")
_DIGIT_RUN = re.compile(r"\d+")


class TreeError(ValueError):
    """A sentence whose dependency tree is missing or is none; the message names the sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentence:
    """One sentence; every field has one entry a word.

    Attributes:
        labels: gold labels, in BIO2 or plain labels of the words.
        tags, heads, relations: part of speech, 1-based head (0 is the root) and relation to it.
    """

    words: tuple[str, ...]
    labels: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    heads: tuple[int, ...] | None = None
    relations: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("labels", "tags", "heads", "relations"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.words):
                raise ValueError(f"Sentence.{name}: expected {len(self.words)} entries, got {len(values)}")

    def part(self, start: int, end: int) -> "Sentence":
        """Give the words from ``start`` to ``end``, half-open; a word whose head stays outside becomes a root."""
        span = slice(start, end)
        heads = None
        if self.heads is not None:
            heads = tuple(head - start if start < head <= end else 0 for head in self.heads[span])
        return Sentence(
            words=self.words[span],
            labels=self.labels and self.labels[span],
            tags=self.tags and self.tags[span],
            heads=heads,
            relations=self.relations and self.relations[span],
        )


def first_words(sentence: Sentence) -> str:
    """Give enough of a sentence to find it again, for messages."""
    return " ".join(sentence.words[:12])


def check_trees(sentences: Iterable[Sentence]) -> None:
    """Check that every sentence has tags, heads and relations.

    Raises:
        TreeError: naming the first sentence that lacks them.
    """
    for sentence in sentences:
        if sentence.tags is None or sentence.heads is None or sentence.relations is None:
            raise TreeError(
                "expected tags and a dependency tree for every sentence, got a sentence without: "
                f"{first_words(sentence)!r}; run `concord parse` on the corpus first"
            )


def normalize_digits(word: str) -> str:
    """Put ``0`` for every decimal digit, as NCRF++ does for words and characters."""
    return _DIGIT.sub("0", word)


def word_case(word: str) -> int:
    """Give 0 for a word in upper case, else 1 for a first letter in upper case, 2 for lower case, 3 for any other."""
    if word.isupper():
        return 0
    if word[:1].isupper():
        return 1
    return 2 if word.islower() else 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """Words, characters, labels, tags and relations by number.

    Of words, characters, tags and relations 0 is padding and 1 the unknown one.

    Attributes:
        words: from number 2 on, after normalisation; words that training saw once stand at the end.
        rare_words: how many words at the end of ``words`` were seen once and have no pretrained vector.
        characters: from number 2 on.
        labels: the tagger's own labels in ``scheme``, from number 0 on.
        lowercase: whether words are lower-cased (characters never are).
        digits: ``each`` puts ``0`` for every digit of words and characters (NCRF++); ``runs`` puts one ``0`` for a run
            of digits of a word and leaves characters alone (Wang et al., 2021); ``keep`` changes nothing (Li et al.,
            2020).
        tags, relations: parts of speech and relations to the head, from number 2 on.
    """

    words: tuple[str, ...]
    characters: tuple[str, ...]
    labels: tuple[str, ...]
    scheme: Scheme = "BIOES"
    lowercase: bool = False
    digits: DigitRule = "each"
    rare_words: int = 0
    tags: tuple[str, ...] = ()
    relations: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.scheme == "TOKENS":
            if not self.labels or self.labels != label_set(self.labels, self.scheme):
                raise ValueError(f"Vocabulary.labels: expected one label or more, sorted, got {self.labels}")
        elif self.labels != label_set(self.entity_types, self.scheme):
            raise ValueError(f"Vocabulary.labels: expected O and all of each type in {self.scheme}, got {self.labels}")

    @classmethod
    def from_sentences(
        cls,
        sentences: Iterable[Sentence],
        *,
        scheme: Scheme = "BIOES",
        lowercase: bool = False,
        digits: DigitRule = "each",
        pretrained_words: Iterable[str] = (),
        entity_types: Iterable[str] = (),
    ) -> "Vocabulary":
        """Collect what training sentences hold.

        Args:
            pretrained_words: words that have a vector; they are known even where training lacks them. One that is
                changed when it is looked up (lower-cased, digits as 0) is not: its new form has no vector.
            entity_types: types to make labels for beside those that the sentences hold.
        """
        words: Counter[str] = Counter()
        characters: Counter[str] = Counter()
        tags: Counter[str] = Counter()
        relations: Counter[str] = Counter()
        kinds = set(entity_types)
        for sentence in sentences:
            for word in sentence.words:
                words[_word_form(word, lowercase=lowercase, digits=digits)] += 1
                characters.update(_spelling(word, digits=digits))
            tags.update(sentence.tags or ())
            relations.update(sentence.relations or ())
            labels = sentence.labels or ()
            kinds.update(labels if scheme == "TOKENS" else _kinds(labels))
        pretrained = dict.fromkeys(
            word for word in pretrained_words if _word_form(word, lowercase=lowercase, digits=digits) == word
        )
        # A word may take the vector of its lower-cased form.
        once = {word for word in words if words[word] == 1 and not {word, word.lower()} & pretrained.keys()}
        rare = [word for word in _by_frequency(words) if word in once]
        frequent = [word for word in _by_frequency(words) if word not in once]
        unseen = [word for word in pretrained if word not in words]
        return cls(
            words=(*frequent, *unseen, *rare),
            characters=tuple(_by_frequency(characters)),
            labels=label_set(kinds, scheme),
            scheme=scheme,
            lowercase=lowercase,
            digits=digits,
            rare_words=len(rare),
            tags=tuple(_by_frequency(tags)),
            relations=tuple(_by_frequency(relations)),
        )

    @property
    def entity_types(self) -> tuple[str, ...]:
        """The entity types, sorted; none under ``TOKENS``."""
        return () if self.scheme == "TOKENS" else tuple(sorted(_kinds(self.labels)))

    def word_form(self, word: str) -> str:
        """Give the form under which a word is looked up."""
        return _word_form(word, lowercase=self.lowercase, digits=self.digits)

    def spelling(self, word: str) -> str:
        """Give the characters under which a word is spelled."""
        return _spelling(word, digits=self.digits)

    def to_mapping(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {
            "words": list(self.words),
            "characters": "".join(self.characters),
            "labels": list(self.labels),
            "scheme": self.scheme,
            "lowercase": self.lowercase,
            "digits": self.digits,
            "rare_words": self.rare_words,
            "tags": list(self.tags),
            "relations": list(self.relations),
        }

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Vocabulary":
        """Undo ``to_mapping``; what was saved before there were tags and relations has none."""
        return cls(
            words=tuple(values["words"]),
            characters=tuple(values["characters"]),
            labels=tuple(values["labels"]),
            scheme=values["scheme"],
            lowercase=values["lowercase"],
            digits=values.get("digits", "each"),  # Taggers saved before the rule could be chosen lack it.
            rare_words=values["rare_words"],
            tags=tuple(values.get("tags", ())),
            relations=tuple(values.get("relations", ())),
        )


def _kinds(labels: Iterable[str]) -> set[str]:
    return {kind for label in labels if (kind := split_label(label)[1])}


def _word_form(word: str, *, lowercase: bool, digits: DigitRule) -> str:
    if digits == "each":
        word = normalize_digits(word)
    elif digits == "runs":
        word = _DIGIT_RUN.sub("0", word)
    return word.lower() if lowercase else word


def _spelling(word: str, *, digits: DigitRule) -> str:
    return normalize_digits(word) if digits == "each" else word


def _by_frequency(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda item: (-counts[item], item))


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Sentences as tensors.

    Attributes:
        sentences: the sentences themselves, for encoders and memory keys.
        words: numbers of words, shape ``(B, T)``, int64, 0 where padded.
        forms: characters of the batch's distinct words, shape ``(F, C)``, int64; row 0 is padding.
        form_cases: case of each of these words, shape ``(F,)``, int64, below ``WORD_CASES``.
        form_index: row of ``forms`` for each word, shape ``(B, T)``, int64.
        lengths: words of each sentence, shape ``(B,)``, int64, on the CPU.
        mask: true where a word stands, shape ``(B, T)``, bool.
        labels: numbers of gold labels, shape ``(B, T)``, int64, -100 where padded; None without gold.
        tags, relations: numbers of parts of speech and of relations, shape ``(B, T)``, int64, 0 where padded; None
            where a sentence of the batch has none.
        documents: number of the sentence's document, shape ``(B,)``, int64, on the CPU; sentences of a document
            stand together and in reading order where a tagger learns from documents.
    """

    sentences: tuple[Sentence, ...]
    words: Tensor
    forms: Tensor
    form_cases: Tensor
    form_index: Tensor
    lengths: Tensor
    mask: Tensor
    labels: Tensor | None
    tags: Tensor | None
    relations: Tensor | None
    documents: Tensor


class BatchEncoder:
    """Turns sentences into batches with one vocabulary; it holds the look-up tables."""

    def __init__(self, vocabulary: Vocabulary, *, max_characters: int = 64) -> None:
        """Build the tables.

        Args:
            max_characters: characters of a word that the character network sees; a longer word (an address, say)
                is known to it by its first so many.
        """
        self._vocabulary = vocabulary
        self._max_characters = max_characters
        self._word_numbers = {word: number for number, word in enumerate(vocabulary.words, start=2)}
        self._character_numbers = {character: number for number, character in enumerate(vocabulary.characters, start=2)}
        self._label_numbers = {label: number for number, label in enumerate(vocabulary.labels)}
        self._tag_numbers = {tag: number for number, tag in enumerate(vocabulary.tags, start=2)}
        self._relation_numbers = {relation: number for number, relation in enumerate(vocabulary.relations, start=2)}

    def encode_batch(
        self,
        sentences: Sequence[Sentence],
        *,
        documents: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """Encode sentences of one word or more.

        Raises:
            ValueError: for an empty sentence, or a gold label that the vocabulary lacks.
        """
        lengths = [len(sentence.words) for sentence in sentences]
        if not lengths or min(lengths) == 0:
            raise ValueError("encode_batch: expected one sentence or more, each with a word or more")
        shape = (len(sentences), max(lengths))
        words = torch.zeros(shape, dtype=torch.int64)
        form_index = torch.zeros(shape, dtype=torch.int64)
        form_rows: dict[str, int] = {"": 0}
        for row, sentence in enumerate(sentences):
            words[row, : lengths[row]] = torch.tensor([self._word_number(word) for word in sentence.words])
            form_index[row, : lengths[row]] = torch.tensor(
                [form_rows.setdefault(word, len(form_rows)) for word in sentence.words]
            )
        length_tensor = torch.tensor(lengths)
        mask = torch.arange(shape[1])[None, :] < length_tensor[:, None]
        return Batch(
            sentences=tuple(sentences),
            words=words.to(device),
            forms=self._encode_forms(list(form_rows)).to(device),
            form_cases=torch.tensor([word_case(form) for form in form_rows]).to(device),
            form_index=form_index.to(device),
            lengths=length_tensor,
            mask=mask.to(device),
            labels=self._encode_labels(sentences, shape, device),
            tags=_encode_column([sentence.tags for sentence in sentences], self._tag_numbers, shape, device),
            relations=_encode_column(
                [sentence.relations for sentence in sentences], self._relation_numbers, shape, device
            ),
            documents=torch.tensor(documents if documents is not None else range(len(sentences))),
        )

    def _word_number(self, word: str) -> int:
        return self._word_numbers.get(self._vocabulary.word_form(word), UNKNOWN)

    def _encode_forms(self, forms: Sequence[str]) -> Tensor:
        rows = [
            [
                self._character_numbers.get(character, UNKNOWN)
                for character in self._vocabulary.spelling(form)[: self._max_characters]
            ]
            for form in forms
        ]
        characters = torch.zeros((len(rows), max(1, max(map(len, rows)))), dtype=torch.int64)
        for number, row in enumerate(rows):
            characters[number, : len(row)] = torch.tensor(row, dtype=torch.int64)
        return characters

    def _encode_labels(
        self, sentences: Sequence[Sentence], shape: tuple[int, int], device: torch.device | str
    ) -> Tensor | None:
        if any(sentence.labels is None for sentence in sentences):
            return None
        labels = torch.full(shape, IGNORED_LABEL, dtype=torch.int64)
        for row, sentence in enumerate(sentences):
            own = from_gold(sentence.labels or (), self._vocabulary.scheme)
            for column, label in enumerate(own):
                if label not in self._label_numbers:
                    raise ValueError(
                        f"label: expected one of {', '.join(self._vocabulary.labels)}, got {label!r} "
                        f"at word {column + 1} of {first_words(sentence)!r}"
                    )
                labels[row, column] = self._label_numbers[label]
        return labels.to(device)


def _encode_column(
    column: Sequence[tuple[str, ...] | None],
    numbers: Mapping[str, int],
    shape: tuple[int, int],
    device: torch.device | str,
) -> Tensor | None:
    encoded = torch.zeros(shape, dtype=torch.int64)
    for row, values in enumerate(column):
        if values is None:
            return None
        encoded[row, : len(values)] = torch.tensor([numbers.get(value, UNKNOWN) for value in values])
    return encoded.to(device)
