"""The guideline of names, docs/guideline.md, as rules that bring the labels of training corpora to it.

\b
    python -m research.entities_en.guideline CORPORA
    python -m research.entities_en.guideline CORPORA --without litbank_prop:titles --output MENDED

CORPORA holds a folder for each corpus with train, dev and perhaps test as .conllu or .conll, compressed or not. Prints
how many names each rule changes, by corpus and part. The rules read what the names of the corpus' training part look
like, never those of other parts.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click

from concord.models.data.sentence import Sentence
from concord.models.labels import Span, decode_spans, encode_spans
from concord.pipeline.corpora.gold_corpus import GoldDocument, write_gold
from concord.workflows.corpora import read_documents
from research.entities_en.words import WORDS

CORPORA = ("ewt_uner", "gum_ne_open", "wikigold", "btc", "litbank_prop")
LABELS = {"GPE": "LOC", "FAC": "LOC", "VEH": None, "MISC": None}
_ARTICLES = {"the", "a", "an"}
_POSSESSIVES = {"'s", "’s", "'", "’"}
_TAILS = {"in": "LOC", "near": "LOC", "at": "ORG", "from": None, "who": None}
"""Words that follow a name, and what they are followed by where the corpus does not say."""


class Lexicon(NamedTuple):
    """What a corpus says of words.

    Attributes:
        names: how often words in a row are a name of a type.
        known: those that begin with a capital, without capitals.
        lower: words with small letters outside of names.
    """

    names: Mapping[tuple[str, str], int]
    known: frozenset[tuple[str, str]]
    lower: frozenset[str]

    @classmethod
    def of(cls, documents: Iterable[Iterable[Sentence]]) -> "Lexicon":
        """Count the names of a corpus."""
        names: Counter[tuple[str, str]] = Counter()
        lower: set[str] = set()
        for document in documents:
            for sentence in document:
                spans = _names(sentence)
                names.update((" ".join(sentence.words[span.start : span.end]), span.label) for span in spans)
                inside = {word for span in spans for word in range(span.start, span.end)}
                lower.update(w for n, w in enumerate(sentence.words) if n not in inside and w[0].islower())
        known = frozenset((text.lower(), label) for text, label in names if not text[0].islower())
        return cls(names, known, frozenset(lower))


class Place(NamedTuple):
    """Where a name stands."""

    words: Sequence[str]
    lexicon: Lexicon
    sport: bool
    """Whether its document may be about matches."""

    def text(self, span: Span) -> str:
        """Return the words of a name."""
        return " ".join(self.words[span.start : span.end])

    def count(self, span: Span) -> int:
        """Return how often the corpus has a name."""
        return self.lexicon.names.get((self.text(span), span.label), 0)


class Mended(NamedTuple):
    """A document after the rules, and how many names each of them changed."""

    sentences: list[Sentence]
    changed: Counter[str]


def mend(document: Sequence[Sentence], lexicon: Lexicon, rules: Iterable[str] | None = None) -> Mended:
    """Bring the names of a document to the guideline.

    Args:
        document: with labels PER, LOC and ORG in BIO2.
        lexicon: of the training part of its corpus.
        rules: names of ``RULES``; None for all. They are applied in the order of ``RULES``.
    """
    chosen = [name for name in RULES if rules is None or name in set(rules)]
    # A single sentence, as of a tweet, says too little.
    sport = len(document) == 1 or any(
        word.lower() in WORDS["sport"] for sentence in document for word in sentence.words
    )
    changed: Counter[str] = Counter()
    sentences = []
    for sentence in document:
        place = Place(sentence.words, lexicon, sport)
        spans = _names(sentence)
        for name in chosen:
            mended = {span: list(RULES[name](place, span)) for span in spans}
            changed[name] += sum(new != [span] for span, new in mended.items())
            spans = [span for new in mended.values() for span in new]
        sentences.append(replace(sentence, labels=encode_spans(spans, len(sentence.words), "BIO")))
    return Mended(sentences, changed)


def drop_signs(place: Place, span: Span) -> Iterator[Span]:
    """Drop names without a letter, and cut them at the sign before the name of an account."""
    start = span.start
    for end in [n for n in range(span.start, span.end) if place.words[n] == "@"] + [span.end]:
        if any(letter.isalpha() for letter in "".join(place.words[start:end])):
            yield Span(start, end, span.label)
        start = end + 1


def cut_possessive(place: Place, span: Span) -> Iterator[Span]:
    """Leave out a final possessive; a shop or restaurant may have it as a part of its name."""
    rest = replace(span, end=span.end - 1)
    ends = rest.start < rest.end and place.words[rest.end] in _POSSESSIVES
    yield rest if ends and (span.label == "PER" or place.count(rest) > place.count(span)) else span


def cut_article(place: Place, span: Span) -> Iterator[Span]:
    """Leave out an article, but one with a capital that most often belongs to the name."""
    rest = replace(span, start=span.start + 1)
    word = place.words[span.start]
    is_article = word.lower() in _ARTICLES and rest.start < rest.end
    lower = word.islower() or (span.label == "PER" and span.start == 0)
    yield rest if is_article and (lower or place.count(rest) > place.count(span)) else span


def cut_epithets(place: Place, span: Span) -> Iterator[Span]:
    """Leave out words before a person or place that are none of the name: poor Tom, eastern Kent."""
    start = span.start
    if span.label != "ORG":
        while start + 1 < span.end and _is_epithet(place, replace(span, start=start)):
            start += 1
    # Nothing but small letters may be a name that somebody typed in haste.
    begins = place.words[start][:1]
    yield replace(span, start=start) if begins.isupper() else span


def _is_epithet(place: Place, span: Span) -> bool:
    word = place.words[span.start]
    if word.lower() in WORDS["epithets"] and not word.islower():
        return span.label == "PER" and place.count(replace(span, start=span.start + 1)) > place.count(span)
    described = place.words[span.start - 1].lower() in _ARTICLES or "-" in word
    letters = word.replace("-", "").isalpha() and not word.endswith("-")
    plain = word.islower() and letters and (described or word in place.lexicon.lower or word in WORDS["epithets"])
    named = (place.text(span).lower(), span.label) in place.lexicon.known
    return plain and not named and word not in WORDS["particles"] | WORDS["titles"] | _ARTICLES


def cut_tail(place: Place, span: Span) -> Iterator[Span]:
    """Cut off where the named one is: Trinity College in Dublin, Ann Lee from the Labour Party."""
    words = place.words
    for cut in range(span.start + 1, span.end - 1):
        person = span.label == "PER" and words[cut - 1] != "-"
        noun = words[cut - 1].lower() in WORDS["place_nouns"] and cut - span.start > 1
        if words[cut] in _TAILS and (person or noun):
            yield replace(span, end=cut)
            yield from _tail(place, Span(cut + 1, span.end, ""), default=None if person else _TAILS[words[cut]])
            return
    yield span


def _tail(place: Place, span: Span, default: str | None) -> Iterator[Span]:
    """Yield what follows a preposition within a longer name, with the type that the corpus most often gives it."""
    while span.start < span.end and place.words[span.start].lower() in _ARTICLES | {"these"}:
        span = replace(span, start=span.start + 1)
    counts = {label: place.count(replace(span, label=label)) for label in ("LOC", "ORG", "PER")}
    best = max(counts, key=lambda label: counts[label])
    if label := best if counts[best] else default:
        yield replace(span, label=label)


def drop_roles(place: Place, span: Span) -> Iterator[Span]:
    """Drop persons that are named by nothing but a role: President, Madam Speaker, Senator from Alaska."""
    words = [_plain(word) for word in place.words[span.start : span.end]]
    of = next((n for n, word in enumerate(words) if word in {"of", "in", "from", "for", "at"}), len(words))
    role = words[:of]
    is_role = role and all(word in WORDS["titles"] | WORDS["additions"] | {"-"} for word in role)
    if span.label != "PER" or not is_role:
        yield span
    elif of < len(words) and role[-1] not in WORDS["noble"]:
        yield from _tail(place, replace(span, start=span.start + of + 1), default=None)
    elif of < len(words) or role[-1] in WORDS["not_bare"] | WORDS["additions"]:
        yield span


def cut_titles(place: Place, span: Span) -> Iterator[Span]:
    """Leave out titles before persons: Mrs. Smith, Vice President Adams; not where they are the name, Duke of York."""
    start = at = span.start
    if span.label == "PER" and place.text(replace(span, start=span.end - 1)) != "America":
        while at + 1 < span.end and _plain(place.words[at]) in WORDS["titles"] | WORDS["additions"] | {"-", "."}:
            title = _plain(place.words[at]) in WORDS["titles"] or (place.words[at] == "." and at > span.start)
            at += 1
            if title and place.words[at][:1].isupper():
                start = at
    yield replace(span, start=start)


def drop_demonyms(place: Place, span: Span) -> Iterator[Span]:
    """Drop adjectives of places and words for their people: French, Americans, South African."""
    *before, last = (word.lower() for word in place.words[span.start : span.end])
    plural = last.endswith(("s", "men"))
    # An airline or newspaper may have an adjective as its name, a person too.
    people = plural or (span.label == "PER" and place.words[span.start - 1].lower() in _ARTICLES)
    singular = last if last in WORDS["demonyms"] else last.removesuffix("s")
    is_demonym = singular in WORDS["demonyms"] and all(word in WORDS["compass"] for word in before)
    if not is_demonym or not (people or span.label == "LOC"):
        yield span


def drop_common_nouns(place: Place, span: Span) -> Iterator[Span]:
    """Drop common nouns that stand alone for a place or organisation: the Nation, the Court."""
    words = place.words[span.start : span.end]
    noun = "-".join(word.lower() for word in words)
    if span.label == "PER" or noun not in WORDS["common_nouns"] or noun.upper() == place.text(span):
        yield span


def place_countries(place: Place, span: Span) -> Iterator[Span]:
    """Make countries places where their government is meant; a team stays an organisation."""
    government = span.label == "ORG" and place.text(span) in WORDS["countries"] and not place.sport
    yield replace(span, label="LOC") if government else span


RULES: Mapping[str, Callable[[Place, Span], Iterable[Span]]] = {
    "signs": drop_signs,
    "possessives": cut_possessive,
    "articles": cut_article,
    "epithets": cut_epithets,
    "roles": drop_roles,
    "tails": cut_tail,
    "titles": cut_titles,
    "demonyms": drop_demonyms,
    "common_nouns": drop_common_nouns,
    "countries": place_countries,
}


def _names(sentence: Sentence) -> list[Span]:
    return sorted(decode_spans(sentence.labels or (), "BIO"))


def _plain(word: str) -> str:
    return word.lower() if word == "." else word.lower().rstrip(".")


def changed_names(before: Iterable[Sentence], after: Iterable[Sentence]) -> int:
    """Return how many names are not the same after the rules."""
    return sum(len(set(_names(old)) - set(_names(new))) for old, new in zip(before, after, strict=True))


def _parts(folder: Path) -> dict[str, Path]:
    found = {name: sorted(folder.glob(f"{name}.conll*")) for name in ("train", "dev", "test")}
    return {name: paths[0] for name, paths in found.items() if paths}


def _read(path: Path) -> list[GoldDocument]:
    return read_documents([str(path)], labels=LABELS)


@click.command(help=__doc__)
@click.argument("corpora", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--rules", default=",".join(RULES), show_default=True, help="Rules to apply, separated by commas.")
@click.option("--without", multiple=True, metavar="CORPUS:RULE", help="Leave the names of a corpus to a rule.")
@click.option("--output", "-o", type=click.Path(path_type=Path, file_okay=False), help="Write mended corpora there.")
def main(corpora: Path, rules: str, without: Sequence[str], output: Path | None) -> None:
    """Mend corpora and print counts."""
    chosen = rules.split(",") if rules else []
    if unknown := {*chosen, *(one.partition(":")[2] for one in without)} - set(RULES):
        raise click.UsageError(f"expected rules of {', '.join(RULES)}, got {', '.join(sorted(unknown))}")
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for corpus in CORPORA:
        parts = {part: (path, _read(path)) for part, path in _parts(corpora / corpus).items()}
        lexicon = Lexicon.of(document.sentences for document in parts["train"][1])
        applied = [rule for rule in chosen if f"{corpus}:{rule}" not in without]
        for part, (path, documents) in parts.items():
            mended = [mend(document.sentences, lexicon, applied) for document in documents]
            total = sum((one.changed for one in mended), Counter[str]())
            counts.setdefault(corpus, {})[part] = {
                "names": sum(len(_names(sentence)) for document in documents for sentence in document.sentences),
                "changed": sum(changed_names(d.sentences, m.sentences) for d, m in zip(documents, mended, strict=True)),
                **{rule: total[rule] for rule in applied},
            }
            if output is not None:
                pairs = zip(documents, mended, strict=True)
                new = [replace(document, sentences=tuple(one.sentences)) for document, one in pairs]
                target = output / corpus / path.name
                target.parent.mkdir(parents=True, exist_ok=True)
                write_gold(target, new, form="conllu" if ".conllu" in path.name else "conll")
    click.echo(json.dumps(counts, indent=1))


if __name__ == "__main__":
    main()
