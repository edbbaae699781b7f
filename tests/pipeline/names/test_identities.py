"""Who is who among the names of a document."""

import time

import pytest

from concord.pipeline.names.identities import Identity, Mention, identify, name_key


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
        ("ORG", ("Congress", "CONGRESS", "the Congress", "Congress's", "Congress’")),
        ("LOC", ("U.S.", "US", "the U. S.", "U.S.'s")),
        ("LOC", ("Winston-Salem", "Winston Salem", "Winston\u2010Salem", "Winston- Salem")),
        ("LOC", ("Washington, D.C.", "Washington DC")),
        ("LOC", ("Zürich", "Zu\u0308rich", "ZÜRICH")),
        ("LOC", ("Côte d'Ivoire", "Côte d’Ivoire", "Côte dʼIvoire", "Côte d′Ivoire")),
        ("PER", ("Roosevelt", "Roose- velt", "Roose\u2010 velt")),
        ("PER", ("J. K. Rowling", "J.K. Rowling", "J.K.Rowling", "JK Rowling", "J K Rowling", "J. K. Rowling's")),
        ("PER", ("Patrick O'Neill", "O’Neill", "OʼNeill")),
        ("PER", ("John F. Kennedy", "Kennedy", "President Kennedy", "Mr. Kennedy", "Dr.Kennedy", "John Kennedy")),
        ("PER", ("Martin Luther King Jr.", "Martin Luther King, Jr.", "Martin Luther King Junior", "Dr. King", "King")),
        ("PER", ("Vincent van Gogh", "Van Gogh", "van Gogh's", "Gogh")),
        ("PER", ("Charles de Gaulle", "General de Gaulle", "De Gaulle")),
        ("PER", ("Ursula von der Leyen", "Von der Leyen", "President von der Leyen")),
        ("PER", ("Muammar al-Gaddafi", "Al-Gaddafi", "al Gaddafi", "Gaddafi")),
        ("PER", ("Luis de la Cruz", "De la Cruz")),
        ("PER", ("Gabriele D'Annunzio", "D’Annunzio")),
        ("PER", ("Éamon Ó Cuív", "Ó Cuív", "O\u0301 Cui\u0301v")),
        ("PER", ("José Ortega y Gasset", "Ortega y Gasset", "Señor Gasset")),
        ("PER", ("Gerard 't Hooft", "’t Hooft")),
        ("PER", ("Mary Smith-Jones", "Professor Smith-Jones")),
        ("PER", ("Lady Margaret Brown", "Mrs. Brown", "Lady Brown", "Brown")),
        ("PER", ("Joshua Abraham Norton", "Joshua Norton", "Emperor Norton", "Norton I", "Norton")),
        ("PER", ("Henry VIII", "Henry")),
    ],
)
def test_names_of_one_share_an_identity(label: str, names: tuple[str, ...]) -> None:
    assert set(numbers(*names, label=label)) == {0}
    assert set(numbers(*reversed(names), label=label)) == {0}


@pytest.mark.parametrize(
    ("label", "names"),
    [
        ("PER", ("Mr. Roberts", "Mrs. Roberts")),
        ("PER", ("Herr Roth", "Frau Roth")),
        ("PER", ("Sir John Brown", "Lady Brown")),
        ("PER", ("Mr. and Mrs. Brown", "Brown")),
        ("PER", ("George H. W. Bush", "George W. Bush")),
        ("PER", ("John Kennedy", "Kennedy Jr.")),
        ("PER", ("Alexandre Dumas junior", "Alexandre Dumas senior")),
        ("PER", ("Henry IV", "Henry VIII")),
        ("PER", ("Peter the Great", "Peter of Amiens")),
        ("PER", ("Catherine of Aragon", "Aragon")),
        ("PER", ("Ann Lee", "Ann Low")),
        ("PER", ("Ann Lee", "A. Low")),
        ("PER", ("A. Lee", "Lee Marvin")),
        ("PER", ("Ann Lee", "Ann")),
        ("PER", ("Mary Smith-Jones", "Jones")),
        ("PER", ("Martin Luther", "Martin Luther King")),
        ("PER", ("Vice President", "President")),
        ("LOC", ("Mexico", "Mexico City")),
        ("LOC", ("York", "New York")),
        ("LOC", ("China", "Republic of China")),
        ("LOC", ("Georgia", "State of Georgia")),
        ("ORG", ("Congress", "African National Congress")),
        ("ORG", ("United Nations", "United Nations Command")),
        ("ORG", ("Senate", "French Senate")),
        ("ORG", ("Acme", "Acme Mills")),
        ("MISC", ("Web 2.0", "Web 20")),
    ],
)
def test_names_of_different_ones_stay_apart(label: str, names: tuple[str, ...]) -> None:
    assert numbers(*names, label=label) == [0, 1]


def test_short_form_that_fits_two_names_is_taken_for_neither() -> None:
    assert numbers("John Kennedy", "Robert Kennedy", "Kennedy", "Robert") == [0, 1, 2, 3]
    assert numbers("George H. W. Bush", "George W. Bush", "George Bush", "Bush") == [0, 1, 2, 3]
    assert numbers("Vincent van Gogh", "Theo van Gogh", "Van Gogh", "Gogh") == [0, 1, 2, 3]
    assert numbers("Henry VII", "Henry VIII", "Henry") == [0, 1, 2]


def persons(text: str, *names: str) -> list[int]:
    return [one.number for one in identify_in(text, *((name, "PER") for name in names))]


def test_titles_in_front_of_names_tell_persons_apart() -> None:
    names = ["Brown"] * 4
    assert persons("Mr. Brown met Mrs. Brown; Mr Brown left, Mrs Brown stayed.", *names) == [0, 1, 0, 1]
    assert persons("Frau Brown met Herr Brown; Frau Brown left, then Brown.", *names) == [0, 1, 0, 2]
    assert persons("Dr. Brown met Professor Brown; Brown left, Miss Brown stayed.", *names) == [0, 0, 0, 0]
    assert persons("Mr. and Mrs. Brown came. Mr. Brown ate.", "Brown", "Brown") == [0, 1]
    # Of which of them the full name is, is known for one.
    text = "Mr. John Brown came. Mrs. Brown and Mr. Brown ate. Brown left."
    assert persons(text, "John Brown", "Brown", "Brown", "Brown") == [0, 1, 0, 2]
    assert persons(text.replace("Mr. John", "John"), "John Brown", "Brown", "Brown", "Brown") == [0, 1, 2, 3]


def test_two_members_of_one_surname_are_two_where_brackets_tell_them_apart() -> None:
    text = "Mr. Smith (Ohio) asked Mr. Smith (Texas). Mr. Smith (Ohio) sat down."
    assert persons(text, *["Smith"] * 3) == [0, 1, 0]
    assert persons(text.replace("Texas", "Ohio"), *["Smith"] * 3) == [0, 0, 0]
    assert persons("John Smith (Ohio) spoke. Smith left.", "John Smith", "Smith") == [0, 0]
    assert persons("Smith (Ohio) and Smith (Texas) came. Smith left.", *["Smith"] * 3) == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "names", "numbers"),
    [
        ("The President met a President. The President spoke of the office of President.", "PER President", "0102"),
        (
            "From India to southern India and Southern India, through Western India to India.",
            "LOC India, LOC India, LOC India, LOC Western India, LOC India",
            "01120",
        ),
        ("George Washington, Washington", "PER George Washington, LOC Washington", "01"),
    ],
    ids=["an office of anybody", "part of a place", "other labels"],
)
def test_what_is_before_a_name_and_its_label_tell_it_apart(text: str, names: str, numbers: str) -> None:
    mentions = [name.split(" ", 1) for name in names.split(", ")] * (len(numbers) if "," not in names else 1)
    found = identify_in(text, *((name, label) for label, name in mentions))
    assert "".join(str(one.number) for one in found) == numbers


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


@pytest.mark.parametrize(
    ("name", "acronym"),
    [
        ("North Atlantic Treaty Organization", "NATO"),
        ("Department of Defense", "DoD"),
        ("Internet of Things", "IoT"),
        ("UN General Assembly", "UNGA"),
        ("Group of 20", "G20"),
        ("HyperText Markup Language", "HTML"),
        ("the European Union", "E.U."),
        ("Local Hiking Groups", "LHGs"),
    ],
)
def test_acronym_in_brackets_behind_a_name_is_this_name_wherever_it_stands(name: str, acronym: str) -> None:
    for opened, closed in ("()", "[]", ("(the ", ")"), ("(", ", founded in 1950)")):
        text = f"{acronym}: {name} {opened}{acronym}{closed} and {acronym}"
        names = ((acronym, "ORG"), (name, "ORG"), (acronym, "ORG"), (acronym, "ORG"))
        assert {identity.number for identity in identify_in(text, *names)} == {0}
    apart = f"{name} - {acronym}"
    assert [one.number for one in identify_in(apart, (name, "ORG"), (acronym, "ORG"))] == [0, 1]


def test_what_is_in_brackets_without_the_initials_of_the_name_is_another() -> None:
    for short in ("Boston", "BBC", "B", "NE"):
        names = (("New England Hydro", "ORG"), (short, "ORG"))
        assert [one.number for one in identify_in(f"New England Hydro ({short})", *names)] == [0, 1]


def test_acronym_of_two_names_is_the_one_that_it_stands_behind() -> None:
    text = "American Bar Association (ABA), American Booksellers Association (ABA); ABA"
    names = ("American Bar Association", "ABA", "American Booksellers Association", "ABA", "ABA")
    found = identify_in(text, *((name, "ORG") for name in names))
    assert [one.number for one in found] == [0, 0, 1, 1, 2]
    assert found[-1].canonical == "ABA"


def test_canonical_name_is_the_fullest_in_its_most_frequent_spelling() -> None:
    names = ["Biden", "President Joe Biden", "Joe Biden's", "JOE BIDEN", "JOE BIDEN"]
    assert canonical(*names) == {"Joe Biden"}
    assert canonical("President Biden", "Mr. Biden", "President Biden") == {"President Biden"}
    assert canonical("Henry", "Henry", "Henry VIII") == {"Henry VIII"}
    assert canonical("J.K. Rowling", "J. K. Rowling", "J.K. Rowling") == {"J.K. Rowling"}
    assert canonical("Jose\u0301", "José") == {"José"}
    assert canonical("Roose- velt") == {"Roosevelt"}
    assert canonical("the U.S.", "the US", "US", label="LOC") == {"US"}
    assert canonical("The Hague", "Hague", "The Hague", label="LOC") == {"Hague"}
    assert canonical("McDonald's", label="ORG") == {"McDonald's"}
    assert canonical("NASA", label="ORG") == {"NASA"}


@pytest.mark.parametrize("name", ["", "'s", "the", "of", "--", "\u0915\u093f", "Mr.", ", Jr.", "I", "\u5f20\u4f1f"])
def test_any_text_is_a_name(name: str) -> None:
    for label in ("PER", "ORG", "LOC", "MISC"):
        [identity] = named(name, label=label)
        assert identity.number == 0


def test_equal_names_of_documents_have_equal_words() -> None:
    assert name_key("U.S.", "LOC") == name_key("the U. S.", "LOC") == "us"
    assert name_key("President Joe Biden", "PER") == "joe biden"
    assert name_key("Patrick O'Neill", "PER") == name_key("Patrick O’Neill", "PER")
    assert name_key("Zürich", "LOC") == name_key("Zu\u0308rich", "LOC")


def test_numbers_epithets_and_regions_keep_names_of_documents_apart() -> None:
    names = ("Henry VII", "Henry VIII", "Henry", "Catherine of Aragon", "Catherine of Siena", "King Jr.", "King Sr.")
    assert len({name_key(name, "PER") for name in names}) == len(names)
    assert len({name_key(name, "LOC") for name in ("Paris", "Paris, Texas", "Paris, Ontario")}) == 3


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
    # 16 times the names: a comparison of all pairs would take 256 times as long.
    assert seconds(4000) < 10 * 16 * seconds(250)
