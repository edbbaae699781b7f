"""Who is who among the names of a document."""

import time

import pytest

from concord.models.names import Identity, Mention, identify, name_key


def named(*names: str, label: str = "PER") -> list[Identity]:
    """Return the identities of names that stand one behind another in a text."""
    return identify_in(" | ".join(names), *((name, label) for name in names))


def identify_in(text: str, *names: tuple[str, str]) -> list[Identity]:
    mentions, start = [], 0
    for name, label in names:
        start = text.index(name, start)
        mentions.append(Mention(name, label, start, start + len(name)))
        start += len(name)
    return identify(mentions, text)


def numbers(*names: str, label: str = "PER") -> list[int]:
    return [identity.number for identity in named(*names, label=label)]


def canonical(*names: str, label: str = "PER") -> set[str]:
    return {identity.canonical for identity in named(*names, label=label)}


@pytest.mark.parametrize(
    ("label", "names"),
    [
        ("ORG", ("Congress", "CONGRESS", "the Congress", "Congress's")),
        ("LOC", ("United States", "the United States'", "U.S.", "US", "U. S.", "America", "USA")),
        ("ORG", ("United Nations Security Council", "UN Security Council")),
        ("ORG", ("Bank of the United States", "Bank of these United States", "Bank of the U. S.")),
        ("PER", ("John F. Kennedy", "Kennedy", "John", "John Kennedy", "J. F. Kennedy", "J. Kennedy", "JFK", "J.F.K.")),
        (
            "PER",
            ("President John F. Kennedy", "Mr. Kennedy", "Kennedy, John F.", "US President Kennedy", "Mr. President"),
        ),
        ("PER", ("Martin Luther King Jr.", "Martin Luther King, Jr.", "Dr. King", "King")),
        (
            "PER",
            ("George Herbert Walker Bush", "George H. W. Bush", "George Bush", "Bush", "Mr. Bush", "G. H. W. Bush"),
        ),
        ("PER", ("Joshua Norton", "Norton I", "Emperor Norton")),
        ("PER", ("John Kennedy Jr.", "John Kennedy", "Kennedy Jr.")),
        ("PER", ("Juan Carlos García López", "Juan García")),
        ("PER", ("Theodorus of Tabennese", "St. Theodorus", "Theodorus")),
        ("ORG", ("Cascade Hydro", "Cascade", "Hydro")),
        ("ORG", ("University of Southern Indiana", "USI", "Southern Indiana", "the University")),
        ("MISC", ("Internet of Things", "IoT")),
        ("LOC", ("City of Cleveland", "Cleveland", "Cleveland, Ohio")),
        ("LOC", ("Glacier National Park", "Glacier")),
    ],
)
def test_names_of_one_share_an_identity(label: str, names: tuple[str, ...]) -> None:
    assert set(numbers(*names, label=label)) == {0}
    assert set(numbers(*reversed(names), label=label)) == {0}


@pytest.mark.parametrize(
    ("label", "names"),
    [
        ("PER", ("Mr. Roberts", "Mrs. Roberts")),
        ("PER", ("Mary Smith", "Mr. Smith")),
        ("PER", ("Mrs. Smith", "John Smith")),
        ("PER", ("George H. W. Bush", "George W. Bush")),
        ("PER", ("George Herbert Walker Bush", "George W. Bush")),
        ("PER", ("John Kennedy", "Kennedy Jr.")),
        ("PER", ("Henry IV", "Henry VIII")),
        ("PER", ("Peter the Great", "Peter of Amiens")),
        ("PER", ("Ann Lee", "Ann Low")),
        ("PER", ("Ann Lee", "A. Low")),
        ("PER", ("Vice President", "President")),
        ("LOC", ("Mexico", "Mexico City")),
        ("LOC", ("York", "New York")),
        ("ORG", ("Bank of America", "Bank of the United States")),
        ("ORG", ("Institute of Art at Yale University", "Yale University")),
        ("MISC", ("Chardonnay Pinot Noir", "Chardonnay")),
    ],
)
def test_names_of_different_ones_stay_apart(label: str, names: tuple[str, ...]) -> None:
    assert numbers(*names, label=label) == [0, 1]


def test_short_form_that_fits_two_names_is_taken_for_neither() -> None:
    assert numbers("John Kennedy", "Robert Kennedy", "Kennedy", "Robert") == [0, 1, 2, 1]
    assert numbers("George H. W. Bush", "George W. Bush", "George Bush") == [0, 1, 2]


def test_gender_decides_between_two_names() -> None:
    assert numbers("Mr. Bob Lee", "Mrs. Ann Lee", "Mrs. Lee", "Mr. Lee", "Lee") == [0, 1, 1, 0, 2]
    assert numbers("Mary Smith", "John Smith", "Mr. Smith", "Mrs. Smith") == [0, 1, 1, 0]


def test_canonical_name_that_a_person_gave_joins_and_splits() -> None:
    names = ["John F. Kennedy", "Kennedy", "Jack", "Kennedy", "Bob", "Bob"]
    said = [None, "Kennedy", "JOHN F. KENNEDY", None, "Robert Kennedy", None]
    mentions = [Mention(name, "PER", 0, 0, canonical) for name, canonical in zip(names, said, strict=True)]
    identities = identify(mentions, "")
    assert [identity.number for identity in identities] == [0, 1, 0, 0, 2, 3]
    assert [identity.canonical for identity in identities[:5]] == [
        "John F. Kennedy",
        "Kennedy",
        "John F. Kennedy",
        "John F. Kennedy",
        "Robert Kennedy",
    ]


def test_names_with_different_labels_stay_apart() -> None:
    identities = identify_in("George Washington, Washington", ("George Washington", "PER"), ("Washington", "LOC"))
    assert [identity.number for identity in identities] == [0, 1]


def test_acronym_in_brackets_behind_a_name_is_this_name_wherever_it_stands() -> None:
    text = "College of Pediatricians (CPeds) and CPeds"
    names = (("College of Pediatricians", "ORG"), ("CPeds", "ORG"), ("CPeds", "ORG"))
    assert {identity.number for identity in identify_in(text, *names)} == {0}
    assert len({identity.number for identity in identify_in(text.replace("(", "- "), *names)}) == 2


def test_office_beside_its_holder_is_the_holder_wherever_it_stands() -> None:
    def found(text: str, *names: str) -> list[int]:
        return [one.number for one in identify_in(text, *((name, "PER") for name in names))]

    text = "Emmanuel Macron, the President of France, spoke. The President of France left."
    names = ("Emmanuel Macron", "President of France", "President of France")
    assert found(text, *names) == [0, 0, 0]
    assert found(text.replace(",", " met"), *names) == [0, 1, 1]
    # Two holders, and a form of address.
    text = "Macron, President of France; Sarkozy, President of France; Mr. President, Senator Lee"
    two = ("Macron", "President of France", "Sarkozy", "President of France", "Mr. President", "Senator Lee")
    assert found(text, *two) == [0, 1, 2, 1, 3, 4]
    # The office is the fuller name of its acronym, and no name is a short form of itself.
    text = "Secretary of State (SoS); SoS, Secretary of State"
    assert found(text, "Secretary of State", "SoS", "SoS", "Secretary of State") == [0, 0, 0, 0]
    agency = identify_in("Reuters, President of France", ("Reuters", "ORG"), ("President of France", "PER"))
    assert [one.number for one in agency] == [0, 1]


def test_canonical_name_is_the_fullest_in_its_most_frequent_spelling() -> None:
    names = ["Biden", "President Joe Biden", "Joe Biden's", "JOE BIDEN", "JOE BIDEN"]
    assert canonical(*names) == {"Joe Biden"}
    assert canonical("the U.S.", "the United States", "U.S.", label="LOC") == {"United States"}
    assert canonical("The Hague", "Hague", "The Hague", label="LOC") == {"Hague"}
    assert canonical("NASA", label="ORG") == {"NASA"}


@pytest.mark.parametrize("name", ["", "'s", "the", "of", "--", "\u0915\u093f", "Mr.", ", Jr.", "I", "\u5f20\u4f1f"])
def test_any_text_is_a_name(name: str) -> None:
    for label in ("PER", "ORG", "LOC", "MISC"):
        [identity] = named(name, label=label)
        assert identity.number == 0


def test_equal_names_of_documents_have_equal_words() -> None:
    assert name_key("U.S.", "LOC") == name_key("the United States", "LOC") == "united states"
    assert name_key("President Joe Biden", "PER") == "joe biden"


def test_numbers_epithets_and_regions_keep_names_of_documents_apart() -> None:
    names = ("Henry VII", "King Henry VIII", "Henry", "Catherine of Aragon", "Catherine of Siena")
    assert len({name_key(name, "PER") for name in names}) == len(names)
    assert len({name_key(name, "LOC") for name in ("Paris", "Paris, Texas", "Paris, Ontario")}) == 3
    assert name_key("King Henry VIII", "PER") == name_key("Henry, VIII", "PER")


def test_time_grows_with_the_names() -> None:
    """Names that share a word, or all of their words, would be compared with each other."""

    def seconds(count: int) -> float:
        names = [
            *(f"Mr. Smith of Town{number}" for number in range(count)),
            *(f"Ms. Ann{number} Smith" for number in range(count)),
            *("Smith", "A. Smith") * count,
            *(f"Smith Ann{number} Lee{number} Low{number}" for number in range(count // 4)),
        ]
        begun = time.process_time()
        named(*names)
        return time.process_time() - begun

    seconds(100)
    assert seconds(4000) < 4 * 4 * seconds(1000)
