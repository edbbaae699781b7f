"""Who is who among the names of a document, by rules that read the names and the words in front of them.

Names of one label are the same if they are equal but for case, a possessive, a leading article, the apostrophes' form,
Unicode's normal form, commas, full stops, the spaces of initials, and hyphens, as at the end of a line. So are

- a person's surname, with or without its particles, and the one full name of the document that ends in it: ``van Gogh``
  and ``Vincent van Gogh``, ``Dr. Brown`` and ``Jane Brown``; and a full name without its middle names. Titles and
  numbers may lack, but not contradict, nor may what is in brackets behind a name: ``Mr. Brown`` and ``Mrs. Brown``
  are two, ``Henry VII`` and ``Henry VIII`` too, ``Mr. Smith (Ohio)`` and ``Mr. Smith (Texas)`` too;
- a name and the acronym of its initials that follows it in brackets, wherever else in the document the acronym occurs,
  unless it follows two names.

Two things are not what their name says: a part of a place (``southern India``), and an office that anybody may hold
(``a President``).
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, groupby, pairwise, takewhile
from typing import NamedTuple

Words = tuple[str, ...]
Marks = frozenset[tuple[str, str]]
"""What tells persons of the same name apart: kinds and values. A couple has two genders."""


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_PERSONS = _set("PER PERSON")
_PLACES = _set("LOC LOCATION GPE")
_MEN = _set("mr mister sir lord herr monsieur señor sr signor senhor")
_WOMEN = _set(
    "mrs ms miss lady dame madam madame mme mademoiselle mlle frau fräulein señora sra señorita srta signora signorina "
    "senhora"
)
_TITLES = (_MEN | _WOMEN).union(
    _set("dr doctor prof professor rev reverend hon judge justice rabbi imam bishop archbishop emperor president vice"),
    _set("premier prime minister chancellor secretary senator sen representative rep congressman congresswoman mayor"),
    _set("governor gov ambassador commissioner chairman speaker general gen colonel col captain capt lieutenant lt"),
    _set("sergeant sgt admiral officer detective inspector coach"),
)
_PARTICLES = _set(
    "van von vom zu zum zur der den het ter ten te t op in af av de des del dela della delle dello dei degli dal dalla "
    "di da do dos das du la le les lo los las el al ad an ar as ash at az ul bin bint ibn ben bar abu abd ap ab st san "
    "santa mac mc ó o ní nic uí"
)
_EPITHETS = _set("of the and &")
"""What is in names that end in no surname: ``Catherine of Aragon``, ``Peter the Great``."""

_FRONT = 40
"""Characters that are read in front of a name."""
_TITLE = re.compile(r"(?:(\w+)\.?\s+(?:and|&|und|et|y|e)\s+)?(\w+)\.?\s*\Z")
_ANY_HOLDER = re.compile(r"\b(?:an?|any|each|every|no|another|as|of)\s+\Z", re.IGNORECASE)
_PART = re.compile(
    r"\b((?:north|south|east|west|northeast|northwest|southeast|southwest)(?:ern)?|central|inner|mainland|downtown|rural|"
    r"early|ancient|medieval)[\s-]+\Z",
    re.IGNORECASE,
)
_OPENED = re.compile(r"\s*[(\[]\s*(?:the\s+)?[\"'“‘]?\Z")
_IN_BRACKETS = re.compile(r"\s*[(\[]\s*([^\W\d_][^\d()\[\]]{0,30})[)\]]")
_CLOSED = re.compile(r"[\"'”’]?\s*[)\],;]")

_APOSTROPHES = "'`´ʹʻʼʽˈ‘’‛′＇"
_SAME_APOSTROPHE = str.maketrans(dict.fromkeys(_APOSTROPHES, "'"))
_POSSESSIVE = re.compile(rf"(?:[{_APOSTROPHES}]s|(?<=s)[{_APOSTROPHES}])\Z", re.IGNORECASE)
_ARTICLE = re.compile(r"\A(?:[Tt]he|THE|an?)\s+(?=\S)")
_GENERATION = re.compile(r"[\s,]+(j|s)(?:n?r|unior|enior)\.?\Z", re.IGNORECASE)
_NUMBER = re.compile(r"[\s,]+([IVX]+)\Z")
_HYPHEN = re.compile("[\u00ac\u2010-\u2015\u2212-]+")
_BROKEN = re.compile(rf"(?<=[^\W\d_][^\W\d_]){_HYPHEN.pattern}\s+([^\W\d_])")
_AFTER_INITIAL = re.compile(r"(?<=\b[^\W\d_])\.|(?<=[^\W\d_])\.(?=[A-Z])")
_AROUND_WORD = ".'\"“”„«»!?*"


class Mention(NamedTuple):
    """An occurrence of a name in a text; the offsets are code points, half-open.

    ``canonical`` is whom or what it names, where a person said so.
    """

    text: str
    label: str
    start: int
    end: int
    canonical: str | None = None


class Identity(NamedTuple):
    """Whom or what a name means: a number within the document, and the fullest name in its most frequent spelling."""

    number: int
    canonical: str


class _Key(NamedTuple):
    """What equal names have in common."""

    label: str
    words: Words
    marks: Marks = frozenset()


class _Spelling(NamedTuple):
    """A name as it is written: the key, shorter names that may stand for it, and whether it is the name alone."""

    key: _Key
    shorter: frozenset[Words]
    is_bare: bool


def identify(mentions: Sequence[Mention], text: str, *, in_english: bool = True) -> list[Identity]:
    """Return the identity of each name of a document, given in the order of its text.

    In another language than English, only names of the same words are the same. A name with a canonical name has the
    identity that bears it, or one of its own; other names stay as they are. It takes time in proportion to the names.
    """
    if in_english:
        keys = [_key_in_text(mention, text) for mention in mentions]
        owners = _owners(keys, [_parse(mention.text, mention.label).shorter for mention in mentions])
        meant = _with_acronyms(mentions, [owners[key] for key in keys], text)
    else:
        keys = [_Key(mention.label, tuple(unicodedata.normalize("NFC", mention.text).split())) for mention in mentions]
        owners, meant = {key: key for key in keys}, [*keys]
    spellings: defaultdict[_Key, Counter[str]] = defaultdict(Counter)
    for mention, key in zip(mentions, keys, strict=True):
        if key.words == owners[key].words:
            spellings[owners[key]][mention.text] += 1
    canonical = {
        key: _canonical(counts, key.label) if in_english else " ".join(key.words) for key, counts in spellings.items()
    }
    bearers = {_parse(canonical[key], key.label).key: key for key in meant}
    for place, mention in enumerate(mentions):
        if mention.canonical is not None:
            said = _parse(mention.canonical, mention.label).key
            # A key of its own, should other names have this one.
            meant[place] = bearers.setdefault(said, said._replace(words=("", *said.words)))
            canonical.setdefault(meant[place], mention.canonical)
    identities: dict[_Key, Identity] = {}
    for key in meant:
        identities.setdefault(key, Identity(len(identities), canonical[key]))
    return [identities[key] for key in meant]


@lru_cache(maxsize=1 << 16)
def name_key(name: str, label: str) -> str:
    """Return what equal names of a label have in common across documents: their words but articles and titles."""
    key = _parse(name, label).key
    return " ".join((*key.words, *(value for kind, value in key.marks if kind == "number")))


def _owners(keys: Sequence[_Key], shorter: Sequence[frozenset[Words]]) -> dict[_Key, _Key]:
    """Map each key to that of the fullest name which it is a short form of, or to itself."""
    marks_of: defaultdict[tuple[str, Words], set[Marks]] = defaultdict(set)
    fuller: defaultdict[tuple[str, Words], set[Words]] = defaultdict(set)
    for key, short_names in zip(keys, shorter, strict=True):
        marks_of[key.label, key.words].add(key.marks)
        for words in short_names:
            fuller[key.label, words].add(key.words)
    owners: dict[_Key, _Key] = {}
    known: defaultdict[_Key, Marks] = defaultdict(frozenset)
    for (label, words), given in sorted(marks_of.items(), key=lambda name: -len(name[0][1])):
        names = (_Key(label, full, marks) for full in fuller[label, words] for marks in marks_of[label, full])
        fitting = {owners[name] for name in names}
        owner = fitting.pop() if len(fitting) == 1 else None
        if owner and (_EPITHETS.intersection(owner.words) or "number" in dict(known[owner])):
            owner = None
        its = known[owner] if owner else frozenset()
        together = its.union(*given)
        contradict = len(together) > len(dict(together))
        for marks in given:
            own = _Key(label, words, marks if contradict else frozenset())
            meant = owner if owner and (not contradict or (marks and marks <= its)) else own
            owners[_Key(label, words, marks)] = meant
            known[meant] |= marks
    return owners


def _with_acronyms(mentions: Sequence[Mention], names: Sequence[_Key], text: str) -> list[_Key]:
    """Replace each acronym by the name that it follows in brackets."""
    explained: dict[int, _Key] = {}
    meanings: defaultdict[_Key, set[_Key]] = defaultdict(set)
    for place, (full, short) in enumerate(pairwise(mentions), start=1):
        if (
            full.label == short.label
            and _OPENED.fullmatch(text, full.end, short.start)
            and _CLOSED.match(text, short.end)
            and _are_initials(short.text, _ARTICLE.sub("", full.text))
        ):
            explained[place] = names[place - 1]
            meanings[names[place]].add(names[place - 1])
    only = {acronym: full for acronym, (full, *others) in meanings.items() if not others}
    return [explained.get(place, only.get(name, name)) for place, name in enumerate(names)]


def _are_initials(acronym: str, name: str) -> bool:
    """Return whether an acronym has the initials of a name; small words, and capitals within words, may be left out."""
    letters = [*filter(str.isalnum, acronym)]
    if len(letters) < 2 or " " in acronym or acronym.islower():
        return False
    reached = {0}
    for word in filter(None, re.split(r"\W+", name)):
        for place, letter in enumerate(word):
            if place == 0 or letter.isupper() or letter.isdigit():
                on = {at + 1 for at in reached if at < len(letters) and letters[at].casefold() == letter.casefold()}
                reached = on | reached if place or letter.islower() else on
    return len(letters) in reached or (letters[-1] == "s" and len(letters) - 1 in reached)


def _key_in_text(mention: Mention, text: str) -> _Key:
    """Return the key of a name, with what the words in front of it say."""
    key = _parse(mention.text, mention.label).key
    front = text[max(0, mention.start - _FRONT) : mention.start]
    if key.label in _PLACES and (part := _PART.search(front)):
        return key._replace(words=(*key.words, "", part[1].casefold()))
    if key.label not in _PERSONS:
        return key
    if _TITLES.issuperset(takewhile(lambda word: word != "of", key.words)) and _ANY_HOLDER.search(front):
        return key._replace(words=(*key.words, "", str(mention.start)))
    # Two members of one surname: Mr. Smith (Ohio), Mr. Smith (Texas).
    if (place := _IN_BRACKETS.match(text, mention.end)) and place[1][0].isupper():
        key = key._replace(marks=key.marks | {("place", place[1].casefold())})
    title = _TITLE.search(front)
    if title is None or title[2] == "miss" or "gender" in dict(key.marks):
        return key
    marks = _gender({title[2].casefold()})
    couple = marks and title[1] and title[1].casefold() in _TITLES
    return key._replace(marks=key.marks | (_gender(_TITLES) if couple else marks))


def _gender(titles: set[str] | frozenset[str]) -> Marks:
    return frozenset(("gender", gender) for gender, those in (("m", _MEN), ("f", _WOMEN)) if titles & those)


@lru_cache(maxsize=1 << 16)
def _parse(text: str, label: str) -> _Spelling:
    whole = _tidy(text)
    name = _ARTICLE.sub("", _POSSESSIVE.sub("", whole))
    is_bare = name == whole
    if label not in _PERSONS:
        return _Spelling(_Key(label, _words(_pieces(name)) or (text,)), frozenset(), is_bare)
    marks: Marks = frozenset()
    generation: Words = ()
    if number := _NUMBER.search(name):
        name, marks = name[: number.start()], frozenset({("number", number[1].casefold())})
    elif found := _GENERATION.search(name):
        name, generation = name[: found.start()], (f"{found[1]}r".casefold(),)
    pieces = _pieces(name)
    titles = [*takewhile(_TITLES.issuperset, pieces)]
    if len(titles) == len(pieces) or pieces[len(titles)] == ("of",):
        titles = []
    pieces = pieces[len(titles) :]
    words = _words(pieces)
    short = [] if _TITLES.issuperset(words) else [_words(form) for form in _short_names(pieces)]
    key = _Key(label, words + generation or (text,), marks | _gender({*chain.from_iterable(titles)}))
    forms = frozenset(form + last for form in short for last in ((), generation))
    return _Spelling(key, forms - {key.words}, is_bare and not titles)


def _tidy(text: str) -> str:
    """Return a name in composed characters, without the hyphen of a line end."""
    name = unicodedata.normalize("NFC", text)
    return _BROKEN.sub(lambda found: found[1] if found[1].islower() else f"-{found[1]}", name)


def _pieces(name: str) -> list[Words]:
    """Return the words between spaces; a piece with hyphens has several."""
    spaced = _AFTER_INITIAL.sub(" ", unicodedata.normalize("NFKC", name.translate(_SAME_APOSTROPHE)))
    folded = unicodedata.normalize("NFKC", spaced.casefold()).replace(",", " ")
    pieces = (tuple(part.strip(_AROUND_WORD) for part in _HYPHEN.split(piece)) for piece in folded.split())
    return [words for piece in pieces if (words := tuple(filter(None, piece)))]


def _words(pieces: Sequence[Words]) -> Words:
    """Return the words of a name, initials that stand together as one word."""
    groups = groupby(chain.from_iterable(pieces), key=lambda word: len(word) == 1 and word.isalpha())
    return tuple(word for initials, words in groups for word in (["".join(words)] if initials else words))


def _short_names(pieces: Sequence[Words]) -> Iterator[Sequence[Words]]:
    """Yield the surname of a full name, with more and more of its particles, and the name without middle names."""
    start = len(pieces) - 1
    if start > 0:
        yield [pieces[-1][len([*takewhile(_PARTICLES.__contains__, pieces[-1][:-1])]) :]]
        yield pieces[start:]
        while start > 1 and _PARTICLES.issuperset(pieces[start - 1]):
            start -= 1
            yield pieces[start:]
        if start > 2 and pieces[start - 1] == ("y",):
            start -= 2
            yield pieces[start:]
        if start > 1:
            yield [pieces[0], *pieces[start:]]


def _canonical(spellings: Counter[str], label: str) -> str:
    """Return the most frequent spelling, if possible one without possessive, article and title."""
    counts: Counter[str] = Counter()
    for spelling, number in spellings.items():
        name = _tidy(spelling)
        name = _ARTICLE.sub("", name) if name[:1].islower() else name
        counts[(_POSSESSIVE.sub("", name) if label in _PERSONS else name) or spelling] += number

    def rank(name: str) -> tuple[bool, bool, bool, int]:
        parsed = _parse(name, label)
        return not name.isupper(), parsed.is_bare, "number" in dict(parsed.key.marks), counts[name]

    return max(counts, key=rank)
