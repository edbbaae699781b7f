"""Tests of the normal forms of dates, amounts of money and numbers."""

import re
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concord.pipeline.names.values import value_of as value_in


def value_of(label: str, text: str) -> str | None:
    return value_in(label, text, 0, len(text))


def value_beside(label: str, marked: str) -> str | None:
    """Return the value of the words in braces, in the text around them."""
    before, words, after = re.split("[{}]", marked)
    return value_in(label, before + words + after, len(before), len(before + words))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1945", "1945"),
        ("the year 1945", "1945"),
        ("May 1945", "1945-05"),
        ("January of 1861", "1861-01"),
        ("1945-05", "1945-05"),
        ("2024-05", "2024-05"),
        ("1945-05-08", "1945-05-08"),
        ("May 8, 1945", "1945-05-08"),
        ("8 May 1945", "1945-05-08"),
        ("the 8th of May, 1945", "1945-05-08"),
        ("Tuesday, Jan. 31, 2006", "2006-01-31"),
        ("September the 11th, 2001", "2001-09-11"),
        ("20.9.2024", "2024-09-20"),
        ("5/5/2024", "2024-05-05"),
    ],
)
def test_dates_are_as_exact_as_they_are_written(text: str, value: str) -> None:
    assert value_of("DATE", text) == value


UNCLEAR = {
    "DATE": (
        "yesterday; May; May 8; four years ago; the 1830s; fiscal year 1958; early 1990; 09/10/11; 30 February 2020; "
        "29 Feb 2019; 5 May 20; 20200605; 5-7 May 2020; 2004-05; 1945-13; 5/4/2025; 5 May 6, 1945; 1066 BC; "
    ),
    "MONEY": (
        "$1.999; €1.000.000,5; ¥100; $100 a month; half a million dollars; 25,000; $5 to $10 million; "
        "$5 million dollars; Australian dollars; $"
    ),
    "CARDINAL": (
        "two hundred thousand; one hundred and five; 5bn; 20 m; 2.5m; 6'2; 1/2; ½; 1 1/2; 1.000.000,5; 100 000; 1,5; "
        "007; 5th; dozen; millions; nineteen forty-five; ten one; a thousand million; 1.515; 2-3; "
        "999999999999999999999999999999; ٣"
    ),
    "PERCENT": "1/2 percent; 3 m%; 1.5 percentage points; 12.4 to 3.2 percent",
    "ORDINAL": "first",
    "TIME": "5 pm",
    "PER": "1945",
}


@pytest.mark.parametrize("label", UNCLEAR)
def test_what_is_not_clear_has_no_value(label: str) -> None:
    found = {text: value_of(label, text) for text in UNCLEAR[label].split("; ")}
    assert found == dict.fromkeys(found)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$3.5 million", "3500000 USD"),
        ("$.5 million", "500000 USD"),
        ("-$160.169 million", "-160169000 USD"),
        ("nearly a billion dollars", "1000000000 USD"),
        ("$ 25,000", "25000 USD"),
        ("€5bn", "5000000000 EUR"),
        ("£5bn", "5000000000 GBP"),
        ("US$ 3.2 million", "3200000 USD"),
        ("$5k", "5000 USD"),
        ("twenty-five euros", "25 EUR"),
        ("A$3", "3 AUD"),
        ("5 million Canadian dollars", "5000000 CAD"),
    ],
)
def test_money_is_an_amount_and_a_currency(text: str, value: str) -> None:
    assert value_of("MONEY", text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", "0"),
        ("1,000", "1000"),
        ("-5", "-5"),
        ("54.1 million", "54100000"),
        ("more than 140", "140"),
        ("forty-two", "42"),
        ("two hundred", "200"),
        ("a hundred", "100"),
    ],
)
def test_numbers_are_digits_or_words(text: str, value: str) -> None:
    assert value_of("CARDINAL", text) == value


@pytest.mark.parametrize(
    ("label", "text", "value"),
    [
        ("PERCENT", "4%", "4%"),
        ("PERCENT", "22-percent", "22%"),
        ("PERCENT", "over 10 percent", "10%"),
        ("PERCENT", "-4.5 per cent", "-4.5%"),
        ("PERCENT", "eleven per cent", "11%"),
        ("PERCENT", "twenty-five percent", "25%"),
        ("Date", "1945", "1945"),
    ],
)
def test_other_labels_have_a_value_of_their_own_or_none(label: str, text: str, value: str) -> None:
    assert value_of(label, text) == value


@pytest.mark.parametrize(
    ("label", "marked", "value"),
    [
        ("MONEY", "gave us {$3 million}.", "3000000 USD"),
        ("MONEY", "paid {$3.5bn} for", "3500000000 USD"),
        ("MONEY", "came to {$3 million} (2025 est.), $4 in all", "3000000 USD"),
        ("CARDINAL", "({5}), he", "5"),
        ("CARDINAL", "more than {five} men", "5"),
        ("CARDINAL", "“{Five} men”", "5"),
        ("CARDINAL", "It has many. {Two} of them", "2"),
        ("PERCENT", "a rate of {37.1%} in May", "37.1%"),
        ("PERCENT", "fell by {5 percent}; 6% more", "5%"),
        ("DATE", "until {1066} in the valley", "1066"),
        ("DATE", "In {1990}, Bush", "1990"),
        ("DATE", "0.4% of GDP ({2023} est.)", "2023"),
        ("DATE", "Tuesday, {May 8, 1945}.", "1945-05-08"),
    ],
)
def test_what_is_beside_an_entity_may_change_nothing(label: str, marked: str, value: str) -> None:
    assert value_beside(label, marked) == value


CHANGED = {
    "MONEY": (
        "sold for {$2.4}m in; over {$5} mil in; over {$1.8} bln in; paid US{$3 million} for; {24,224} million "
        "dollars; cost {$1} 1/2 million to; loss of minus {$5}; $3 and {$5 million} in all; paid hong kong {$5 "
        "million} for; between {$3} and $5 million; paid {$1.5}-$2 billion; {$3}, $4 and $5 million; {$5} and 30 "
        "cents; {£10}, 5s. in all; sold for {$2.4}mil; cost {$7 million} (Australian); lost {$5 million} "
        "Canadian; Hong Kong {$3 million}; {$5 million} (AUD); {$5 million} in Canadian money"
    ),
    "CARDINAL": (
        "births: {19},115,781 (2025; 28.964 {a billion} kWh; {twenty}-five men; it was −{5}; between {3} and 5 "
        "million; {two} and a half million; {two} dozen; half {a million}; {1}.234.567; {12} 000; {5} m wide; "
        "{3}:1; {one hundred} and five; {twenty}-first; {5} o'clock; {79} A.D.; {two} point five; COVID-{19}; "
        "[{1}] (202) 612; -٣{5}"
    ),
    "PERCENT": (
        "to 5 1/{2 percent} in; fell\n-{5 percent}; was 1,{5 %} in; one tenth of {1 percent}; 5-{6%}; at {5}½ "
        "percent; growth - {5%}"
    ),
    "DATE": (
        "in May {1990}; in {1274} B.C. the; until {1066} B.C.; {1274}–1258 BC; in {1274} (or 1275) BCE; BC "
        "{1274}; {1400} AH; mid-{1990}; {1990}s; c. {1500}; {2019}/20; {1990}-95; Q3 {2019}; spring of {1990}; "
        "fiscal {1990}; {1990} fiscal year; May 1-5, {1990}; 5-7 {May 1990}; {1945}-05-08; {2500} years ago; "
        "{1990} or so"
    ),
}


@pytest.mark.parametrize("label", CHANGED)
def test_what_is_beside_an_entity_may_change_it(label: str) -> None:
    found = {marked: value_beside(label, marked) for marked in CHANGED[label].split("; ")}
    assert found == dict.fromkeys(found)


@given(st.dates(min_value=date(1000, 1, 1), max_value=date(2999, 12, 31)))
def test_every_day_is_read_back(day: date) -> None:
    for form in (day.isoformat(), f"{day:%B} {day.day}, {day.year}", f"{day.day} {day:%b} {day.year}"):
        assert value_of("DATE", form) == day.isoformat()


@given(st.integers(0, 10**15), st.sampled_from(["${:,}", "{:,} dollars", "US${}"]))
def test_every_amount_is_read_back(amount: int, form: str) -> None:
    assert value_of("MONEY", form.format(amount)) == f"{amount} USD"


@given(st.sampled_from(["DATE", "MONEY", "PERCENT", "CARDINAL"]), st.text(max_size=80))
def test_any_text_has_a_value_of_its_form_or_none(label: str, text: str) -> None:
    value = value_of(label, text)
    assert value is None or re.fullmatch(r"-?[0-9]+(\.[0-9]+)?( [A-Z]{3}|%)?|[0-9]{4}-[0-9]{2}(-[0-9]{2})?", value)


@given(st.sampled_from(["DATE", "MONEY", "PERCENT", "CARDINAL"]), st.text("15,./- 09$%kmto", max_size=30), st.data())
def test_no_piece_of_digits_has_a_value_of_its_own(label: str, text: str, data: st.DataObject) -> None:
    number = data.draw(st.from_regex(r"[1-9][0-9]{3,9}", fullmatch=True))
    cut = data.draw(st.integers(1, len(number) - 1))
    for start, end in ((0, cut), (cut, len(number))):
        assert value_in(label, f"{number} {text}", start, end) is None


def test_white_space_and_invisible_characters_beside_an_entity_change_nothing() -> None:
    assert value_beside("MONEY", "paid\n{$3.5\u200b\u202f million}\u00a0for") == "3500000 USD"
    assert value_beside("CARDINAL", "{12}\u00a0000 men") is None
