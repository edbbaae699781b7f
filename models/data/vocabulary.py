"""The vocabulary: words, characters, labels, tags and relations by number."""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from operator import attrgetter
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, ValidationInfo, field_validator

from concord.models.config import Config
from concord.models.data.sentence import Sentence
from concord.models.labels import BIOES, LabelScheme, label_scheme

DigitRule = Literal["each", "runs", "keep"]


_DIGIT = re.compile(r"\d")
_DIGIT_RUN = re.compile(r"\d+")


def _as_scheme(value: LabelScheme | str) -> LabelScheme:
    return value if isinstance(value, LabelScheme) else label_scheme(value)


def normalize_digits(word: str) -> str:
    """Replace every decimal digit by ``0``, as NCRF++ does for words and characters."""
    return word if word.isalpha() else _DIGIT.sub("0", word)


class Vocabulary(Config):
    """Words, characters, labels, tags and relations by number.

    For words, characters, tags and relations, 0 is padding and 1 is unknown.
    """

    words: tuple[str, ...]
    """From number 2, after normalisation; words seen once in training come last."""
    characters: Annotated[tuple[str, ...], BeforeValidator(tuple), PlainSerializer("".join)]
    scheme: Annotated[LabelScheme, PlainValidator(_as_scheme), PlainSerializer(attrgetter("name"))] = BIOES
    labels: tuple[str, ...]
    """The tagger's own labels in ``scheme``, from number 0."""
    lowercase: bool = False
    """Whether words are lower-cased (characters never are)."""
    digits: DigitRule = "each"
    """``each`` replaces every digit in words and characters by ``0`` (NCRF++); ``runs`` replaces each run of digits in
    a word by one ``0`` and leaves characters alone (Wang et al., 2021); ``keep`` changes nothing (Li et al., 2020)."""
    rare_words: int = Field(default=0, ge=0)
    """How many words at the end of ``words`` were seen once and have no pretrained vector."""
    tags: tuple[str, ...] = ()
    relations: tuple[str, ...] = ()
    """Tags (parts of speech) and relations to the head, from number 2."""

    @field_validator("labels")
    @classmethod
    def _are_complete(cls, labels: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        scheme = info.data.get("scheme")
        if scheme is not None and not (labels and labels == scheme.label_set(scheme.types(labels))):
            raise ValueError(f"expected {scheme.rule}")
        return labels

    @classmethod
    def from_sentences(
        cls,
        sentences: Iterable[Sentence],
        *,
        scheme: LabelScheme = BIOES,
        lowercase: bool = False,
        digits: DigitRule = "each",
        pretrained_words: Iterable[str] = (),
        most_words: int | None = None,
        entity_types: Iterable[str] = (),
    ) -> "Vocabulary":
        """Collect the vocabulary of training sentences.

        Args:
            pretrained_words: words with a vector; they are added even if training lacks them, except words that
                change when looked up (lower-cased, digits as 0), since the changed form has no vector.
            most_words: only this many words of the sentences, the most frequent ones, get a number.
            entity_types: types to make labels for in addition to those in the sentences.
        """
        words, characters, tags, relations = (Counter[str]() for _ in range(4))
        types = set(entity_types)
        soft_names: set[tuple[str, ...]] = set()
        for sentence in sentences:
            for word in sentence.words:
                words[_word_form(word, lowercase=lowercase, digits=digits)] += 1
                characters.update(_spelling(word, digits=digits))
            tags.update(sentence.tags or ())
            relations.update(sentence.relations or ())
            types |= scheme.types(sentence.labels or ())
            if sentence.soft is not None:
                soft_names.add(sentence.soft.names)
        types |= scheme.types(chain.from_iterable(soft_names))
        pretrained = dict.fromkeys(
            word for word in pretrained_words if _word_form(word, lowercase=lowercase, digits=digits) == word
        )
        # A word may take the vector of its lower-cased form.
        ordered = _by_frequency(words)[:most_words]
        once = {word for word in ordered if words[word] == 1 and not {word, word.lower()} & pretrained.keys()}
        rare = [word for word in ordered if word in once]
        frequent = [word for word in ordered if word not in once]
        numbered = set(ordered)
        unseen = [word for word in pretrained if word not in numbered]
        return cls(
            words=(*frequent, *unseen, *rare),
            characters=tuple(_by_frequency(characters)),
            labels=scheme.label_set(types),
            scheme=scheme,
            lowercase=lowercase,
            digits=digits,
            rare_words=len(rare),
            tags=tuple(_by_frequency(tags)),
            relations=tuple(_by_frequency(relations)),
        )

    @property
    def entity_types(self) -> tuple[str, ...]:
        """The entity types, sorted; none for word labels."""
        return tuple(sorted(self.scheme.types(self.labels))) if self.scheme.has_entities else ()

    def word_form(self, word: str) -> str:
        """Return the form under which a word is looked up."""
        return _word_form(word, lowercase=self.lowercase, digits=self.digits)

    def spelling(self, word: str) -> str:
        """Return the characters of a word, as they are looked up."""
        return _spelling(word, digits=self.digits)


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
