"""Who is who among the names of a document, by rules that read nothing but the names.

Names with the same label share an identity if they are equal but for case, full stops, a possessive and an article, if
they are two names of one country, or if one is a short form of the other:

- a person's surname, given name, initials or title: ``Kennedy``, ``J. F. Kennedy`` and ``Mr. Kennedy`` for ``John F.
  Kennedy``;
- neighbouring words of an organisation's name: ``Cascade`` for ``Cascade Hydro``;
- a place without its kind or what it lies in: ``Cleveland`` for ``City of Cleveland`` and ``Cleveland, Ohio``;
- the letters of an acronym: ``IoT`` for ``Internet of Things``, and any acronym in brackets behind its name;
- an office beside its holder: ``President of France`` where the text has ``Emmanuel Macron, the President of France``.

A short form that fits two names of the document is taken for neither.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, pairwise, product
from typing import NamedTuple

Words = tuple[str, ...]


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_PERSONS = _set("PER PERSON")
_ORGANISATIONS = _set("ORG ORGANIZATION ORGANISATION")
_PLACES = _set("LOC LOCATION GPE")

_ARTICLES = _set("the a an")
_DETERMINERS = _set("the these this our")
_ELSEWHERE = _set("at in for from by with on to")
_LINKING = (
    _ARTICLES | _ELSEWHERE | _set("of and or & de du des da del della di al la le les el von van der den das y et und")
)
_EPITHETS = _set("of the from at in on and with")
_GENERATIONS = _set("jr sr junior senior")
_NUMBERS = _GENERATIONS | _set("i ii iii iv v vi vii viii ix x xi xii xiii xiv xv xvi")
_MALE = _set("mr mister sir lord king prince uncle father monsieur herr")
_FEMALE = _set("mrs ms miss lady dame madam queen princess aunt mother sister madame mme frau")
_MEN = _set(
    "aaron adam albert alexander andrew anthony arthur benjamin bernard bill bob brian bruce charles christopher "
    "daniel david dennis donald douglas edward eric ernest eugene frank frederick gary george gerald gregory harold "
    "harry henry howard hugh jack jacob james jason jeffrey jeremy jim joe john jonathan joseph joshua karl keith "
    "kenneth kevin larry lawrence leonard louis mark martin matthew michael mike nathan nicholas oliver patrick paul "
    "peter philip ralph raymond richard robert roger ronald roy samuel scott simon stephen steven theodore thomas "
    "timothy tom victor vincent walter william"
)
_WOMEN = _set(
    "agnes alice amanda amy andrea angela anna anne barbara beatrice betty brenda carol caroline catherine charlotte "
    "christina christine cynthia deborah diana diane donna dorothy edith eleanor elizabeth ellen emily emma esther eva "
    "florence frances grace hannah harriet heather helen ida irene jane janet jennifer jessica joan joanna judith "
    "julia julie karen katherine kathleen laura linda lisa louise lucy margaret maria marie martha mary melissa "
    "michelle nancy olivia pamela patricia rachel rebecca rose ruth sandra sarah sharon sophia stephanie susan teresa "
    "theresa victoria virginia"
)
"""Given names that are seldom those of another gender."""
_FORMS_OF_ADDRESS = _set("mr mrs ms miss madam madame dr sir")
_OFFICES = _set(
    "president senator secretary minister governor congressman congresswoman representative ambassador commissioner "
    "professor chairman"
)
_TITLES = (_MALE | _FEMALE | _FORMS_OF_ADDRESS | _OFFICES).union(
    _set("doctor prof sen rep gov general gen colonel col major maj captain capt lieutenant lt sergeant sgt admiral"),
    _set("emperor empress tsar shah sheikh duke duchess count countess baron earl pope saint st brother rev reverend"),
    _set(
        "bishop archbishop cardinal imam rabbi judge justice chief prime vice chancellor mayor speaker chair director"
    ),
    _set("coach officer detective his her your imperial royal majesty highness excellency honor honour"),
)
_ALIASES = {
    "america": "united states",
    "united states of america": "united states",
    "britain": "united kingdom",
    "great britain": "united kingdom",
}
_WRITTEN_OUT = {
    "us": ("United", "States"),
    "usa": ("United", "States"),
    "uk": ("United", "Kingdom"),
    "ussr": ("Soviet", "Union"),
    "un": ("United", "Nations"),
    "eu": ("European", "Union"),
}
_REWRITTEN = _DETERMINERS.union(_WRITTEN_OUT)
_KINDS_BEHIND = _set("islands national park")
_KINDS_IN_FRONT = _set("city town state county republic kingdom province commonwealth")

_LONGEST_ACRONYM = 10
_COMBINED_WORDS = 4
_PARTED_WORDS = 8
"""Longer names have fewer short forms."""
_MOST_OWNERS = 200
"""A short form of more names than this is taken for none, so that the time grows no faster than the names."""

_APPOSED = re.compile(r"\s*,\s*(?:(?:the|an?|his|her|its|our|their)\s+)?\Z")
_LAST_LETTERS = re.compile(r"(?<=\b\w\.)\s+(?=\w\.(?:\s+\w\.)*\Z)")
_BETWEEN_WORDS = re.compile(r"[\s/,;:()\"\u201c\u201d\u2010-\u2015-]+")
_AROUND_WORD = ".'\u2018\u2019!?*"
_DOTTED = re.compile(r"(?:\w\.)+\w?")
_POSSESSIVE = re.compile(r"(?:['\u2018\u2019]s|(?<=s)['\u2018\u2019])\Z", re.IGNORECASE)
_ARTICLE = re.compile(r"\A(?:the|an?)\s+(?=\S)")


class Mention(NamedTuple):
    """A name where it stands in a text; the offsets are code points, half-open.

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
    """What the spellings of a name have in common.

    ``marks`` are a person's gender and number, and an epithet or what a place lies in; empty if not given.
    """

    label: str
    words: Words
    marks: tuple[str, str, str] = ("", "", "")


@dataclass(slots=True, eq=False)
class _Name:
    """A name of the document; ``fuller`` is the name that it is a short form of.

    ``marks`` are those of the key, filled up with those of its short forms.
    """

    key: _Key
    surface: Words
    marks: tuple[str, ...]
    titles: set[Words] = field(default_factory=set)
    spellings: Counter[str] = field(default_factory=Counter)
    fuller: "_Name | None" = None

    def fullest(self) -> "_Name":
        name = self
        while name.fuller is not None:
            name = name.fuller
        return name

    def may_be(self, other: "_Name") -> bool:
        return all(not mine or not its or mine == its for mine, its in zip(self.marks, other.marks, strict=True))

    def shorten(self, fuller: "_Name") -> None:
        """Make this a short form of another name."""
        self.fuller = fuller
        fuller.marks = tuple(its or mine for its, mine in zip(fuller.marks, self.marks, strict=True))


def identify(mentions: Sequence[Mention], text: str) -> list[Identity]:
    """Return the identity of each name of a document, given in the order of its text.

    A name with a canonical name has the identity that bears it, or one of its own; other names stay as they are.
    It takes time in proportion to the names.
    """
    by_spelling: dict[tuple[str, str], _Name] = {}
    names: dict[_Key, _Name] = {}
    for mention in mentions:
        spelling = (mention.text, mention.label)
        if spelling not in by_spelling:
            parsed = _parse(*spelling)
            by_spelling[spelling] = names.setdefault(parsed.key, parsed)
            by_spelling[spelling].titles.update(parsed.titles)
        by_spelling[spelling].spellings[mention.text] += 1
    named = [by_spelling[mention.text, mention.label] for mention in mentions]
    neighbours = list(pairwise(zip(mentions, named, strict=True)))
    for (full, name), (short, acronym) in neighbours:
        if _explains(full, short, text) and acronym.fuller is None and name.fullest() is not acronym:
            acronym.shorten(name.fullest())
    holders: defaultdict[_Name, set[_Name]] = defaultdict(set)
    for (first, one), (second, other) in neighbours:
        if first.label == second.label in _PERSONS and _APPOSED.match(text[first.end : second.start]):
            offices = [name for name in (one, other) if _is_office(name)]
            if len(offices) == 1:
                holders[offices[0]].add(other if offices[0] is one else one)
    for office, (holder, *others) in holders.items():
        if not others and holder.fullest() is not office:
            office.shorten(holder.fullest())
    _join_short_forms(list(names.values()))
    chosen = _as_people_said(mentions, [name.fullest() for name in named])
    identities: dict[_Name, Identity] = {}
    for name in chosen:
        if name not in identities:
            identities[name] = Identity(len(identities), _spelling(name))
    return [identities[name] for name in chosen]


def _as_people_said(mentions: Sequence[Mention], fullest: list[_Name]) -> list[_Name]:
    """Return the name that each mention means; its own canonical name decides before the rules."""
    if all(mention.canonical is None for mention in mentions):
        return fullest
    known = {_parse(_spelling(name), name.key.label).key: name for name in fullest}
    for place, mention in enumerate(mentions):
        if mention.canonical is not None:
            said = _parse(mention.canonical, mention.label)
            said.spellings[mention.canonical] = 1
            fullest[place] = known.setdefault(said.key, said)
    return fullest


@lru_cache(maxsize=1 << 16)
def name_key(name: str, label: str) -> str:
    """Return what equal names of a label have in common across documents: their words but articles and titles."""
    key = _parse(name, label).key
    return " ".join((*key.words, *filter(None, key.marks[1:])))


def _explains(full: Mention, short: Mention, text: str) -> bool:
    """Return whether an acronym stands in brackets behind its name."""
    return (
        full.label == short.label
        and text[full.end : short.start].strip() == "("
        and text[short.end : short.end + 1] == ")"
        and _is_acronym((short.text,))
        and len(short.text) < len(full.text)
        and full.text[:1].casefold() == short.text[:1].casefold()
    )


def _is_office(name: _Name) -> bool:
    """Return whether a person's name is an office alone: ``Secretary of State``, and no form of address."""
    return _TITLES.issuperset(_cut(name.key.words, _LINKING)[0]) and not any(name.key.marks)


def _join_short_forms(names: Sequence[_Name]) -> None:
    """Join each name with the only one that it is a short form of, the longest names first."""
    owners: defaultdict[tuple[str, Words], list[_Name]] = defaultdict(list)
    for name in names:
        for form in _short_forms(name):
            owners[name.key.label, form].append(name)
    for name in sorted(names, key=_fullest_first):
        if name.fuller is None and (fuller := _only_fuller(name, owners)):
            name.shorten(fuller)


def _fullest_first(name: _Name) -> tuple[bool, int, int, bool]:
    words = name.key.words
    return _TITLES.issuperset(words), -len(words), -sum(map(len, words)), not any(name.marks)


def _only_fuller(name: _Name, owners: Mapping[tuple[str, Words], Sequence[_Name]]) -> _Name | None:
    forms = [name.key.words]
    if _is_acronym(name.surface):
        forms.append(("", *name.key.words))
    if not any(name.key.marks):
        forms.append((*name.key.words, ""))
    having = list(chain.from_iterable(owners.get((name.key.label, form), ()) for form in forms))
    if len(having) > _MOST_OWNERS:
        return None
    fitting = {fullest for fullest in (owner.fullest() for owner in having) if fullest.may_be(name)} - {name}
    if (number := name.key.marks[1]) in _GENERATIONS:
        # Kennedy Jr. is not John Kennedy, whereas John Kennedy may be John Kennedy Jr., and Norton I is Joshua Norton.
        fitting = {fullest for fullest in fitting if fullest.marks[1] == number}
    return fitting.pop() if len(fitting) == 1 else None


def _parse(text: str, label: str) -> _Name:
    name, comma, behind = _POSSESSIVE.sub("", text).partition(",")
    number = ""
    if label in _PERSONS:
        name, number = _without_comma(name, behind)
    elif label not in _PLACES:
        name += comma + behind
    surface = _words(_LAST_LETTERS.sub("", name)) or (text,)
    if len(surface) > 1 and surface[0].lower() in _ARTICLES:
        surface = surface[1:]
    words = tuple(map(_fold, surface))
    if not _REWRITTEN.isdisjoint(words):
        written_out = chain.from_iterable(map(_WRITTEN_OUT.get, words, ((word,) for word in surface)))
        pairs = pairwise(("", *written_out))
        surface = tuple(word for before, word in pairs if before not in _EPITHETS or word not in _DETERMINERS)
        words = tuple(map(_fold, surface))
    if label in _PERSONS:
        return _parse_person(label, words, surface, number)
    alias = _ALIASES.get(" ".join(words))
    region = " ".join(map(_fold, _words(behind))) if label in _PLACES else ""
    key = _Key(label, tuple(alias.split()) if alias else words, ("", "", region))
    return _Name(key, surface, key.marks)


def _without_comma(name: str, behind: str) -> tuple[str, str]:
    """Return a person's name and number, given what is behind its comma; ``Kennedy, John`` is turned round."""
    words = tuple(map(_fold, _words(behind)))
    if words and words[0] in _NUMBERS:
        return name, words[0]
    if len(_words(name)) == 1 and 1 <= len(words) <= 3 and not (_EPITHETS | _TITLES).intersection(words):
        return f"{behind} {name}", ""
    return name, ""


def _parse_person(label: str, words: Words, surface: Words, number: str) -> _Name:
    """Part a person's name into titles, the name itself, and a number or epithet: ``King``, ``Henry``, ``VIII``."""
    first = max((place for place, word in enumerate(words, start=1) if word in _OFFICES), default=0)
    while first < len(words) and words[first] in _TITLES:
        first += 1
    if _TITLES.issuperset(words):
        first = int(len(words) > 1 and words[0] in _FORMS_OF_ADDRESS)
    elif first == len(words) or words[first] in _LINKING:
        first = 0
    last = first + 1
    while last < len(words) and words[last] not in _EPITHETS and not _is_number(words[last:]):
        last += 1
    epithet = words[last:]
    if _TITLES.issuperset(words[first:last]):
        last, epithet = len(words), ()
    elif _is_number(epithet):
        number, epithet = epithet[0], epithet[1:]
    titles = words[:first]
    gender = "male" if _MALE.intersection(titles) else "female" if _FEMALE.intersection(titles) else ""
    key = _Key(label, words[first:last], (gender, number, " ".join(epithet)))
    own = next((place for place, title in enumerate(titles) if _TITLES.issuperset(titles[place:])), len(titles))
    given = key.words[0] if len(key.words) > 1 and not gender else ""
    gender = "male" if given in _MEN else "female" if given in _WOMEN else gender
    return _Name(key, surface[first:last], (gender, *key.marks[1:]), {titles, titles[own:]})


def _is_number(words: Words) -> bool:
    return bool(words) and words[0] in _NUMBERS and (len(words) == 1 or words[1] in _EPITHETS | _TITLES)


def _words(text: str) -> Words:
    return tuple(word for part in _BETWEEN_WORDS.split(text) if (word := part.strip(_AROUND_WORD)))


def _fold(word: str) -> str:
    return (word.replace(".", "") if _DOTTED.fullmatch(word) else word).casefold()


def _short_forms(name: _Name) -> set[Words]:
    label, words, marks = name.key
    forms: set[Words] = set()
    if label in _PERSONS:
        forms = {*_parts_of_person(words), *name.titles}
    elif label in _ORGANISATIONS:
        forms = set(_parts_of_organisation(words))
    elif label in _PLACES:
        forms = set(_parts_of_place(words))
    forms = {form for form in forms if form and form[0] not in _LINKING and form[-1] not in _LINKING}
    forms.discard(words)
    if len(words) > 1 or label not in _PERSONS:
        forms.update(("", letters) for letters in _acronyms(name.surface))
    if any(marks):
        # "Kennedy" is a short form of "Mr. Kennedy", but not the other way round.
        forms.add((*words, ""))
    return forms


def _parts_of_person(words: Words) -> Iterator[Words]:
    if _TITLES.issuperset(_cut(words, _LINKING)[0]):
        return
    if len(words) > _COMBINED_WORDS:
        yield from _parts(words)
        return
    for ways in product(("whole", "initial", "left out"), repeat=len(words)):
        # Initials stand for given names, and only before a surname.
        if ways[-1] == "whole" or (ways[-1] == "left out" and "initial" not in ways):
            form = [{"whole": word, "initial": word[:1]}.get(way, "") for word, way in zip(words, ways, strict=True)]
            # George W. Bush is not George H. W. Bush: of several middle initials all are given, or none.
            if "" not in form[1:-1] or not any(len(word) == 1 for word in form[1:-1]):
                yield tuple(filter(None, form))


def _parts_of_organisation(words: Words) -> Iterator[Words]:
    head, behind = _cut(words, _LINKING)
    yield from _parts(head)
    if behind[:1] == ("of",) and not _ELSEWHERE.intersection(behind):
        yield behind[1:]
    yield from (words[:end] for end in range(1, min(len(words), _PARTED_WORDS)))


def _parts_of_place(words: Words) -> Iterator[Words]:
    if words[1:2] == ("of",) and words[0] in _KINDS_IN_FRONT:
        yield words[2:]
    end = len(words)
    while end > 1 and words[end - 1] in _KINDS_BEHIND:
        end -= 1
        yield words[:end]


def _parts(words: Words) -> Iterator[Words]:
    """Yield all neighbouring words of a name, of a longer one its single words."""
    longest = len(words) if len(words) <= _PARTED_WORDS else 1
    for length in range(1, longest + 1):
        yield from (words[start : start + length] for start in range(len(words) - length + 1))


def _cut(words: Words, at: frozenset[str]) -> tuple[Words, Words]:
    """Cut a name before the first of some words, its own first word excepted."""
    end = next((place for place, word in enumerate(words) if place and word in at), len(words))
    return words[:end], words[end:]


def _is_acronym(surface: Words) -> bool:
    return len(surface) == 1 and len(surface[0]) <= _LONGEST_ACRONYM and sum(map(str.isupper, surface[0])) > 1


def _acronyms(surface: Words) -> Iterator[str]:
    """Yield the first letters of a name's words, with and without small words, and with capitals within words."""
    for words in (surface, [word for word in surface if word[:1].isupper() or word.isdigit()]):
        yield from (
            "".join(word if word.isdigit() else word[:1] + within(word) for word in words).casefold()
            for within in (lambda word: "", _capitals_within)
        )


def _capitals_within(word: str) -> str:
    return "" if word.isupper() else "".join(filter(str.isupper, word[1:]))


def _spelling(name: _Name) -> str:
    """Return a name's most frequent spelling without possessive and article, if possible one that is the name alone."""
    counts: Counter[str] = Counter()
    for spelling, number in name.spellings.items():
        counts[_ARTICLE.sub("", _POSSESSIVE.sub("", spelling))] += number

    def rank(spelling: str) -> tuple[bool, bool, int]:
        return not spelling.isupper(), tuple(map(_fold, _words(spelling))) == name.key.words, counts[spelling]

    return max(counts, key=rank)
