"""Tests of the normal forms of dates, amounts of money and numbers."""

import re
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concord.models.values import value_of


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
        ("9/20/2024", "2024-09-20"),
        ("20.9.2024", "2024-09-20"),
        ("5/5/2024", "2024-05-05"),
    ],
)
def test_dates_are_as_exact_as_they_are_written(text: str, value: str) -> None:
    assert value_of("DATE", text) == value


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "May",
        "May 8",
        "four years ago",
        "65.9 years",
        "the 1830s",
        "the 21st Century",
        "fiscal year 1958",
        "early 1990",
        "the 1980s",
        "mid-June",
        "last Friday",
        "09/10/11",
        "30 February 2020",
        "29 Feb 2019",
        "5 May 20",
        "20200605",
        "5-7 May 2020",
        "1992-98",
        "2004-05",
        "1945-13",
        "5/4/2025",
        "31 February 2000",
        "5 May 6, 1945",
        "1948 and 1949",
        "1066 BC",
        "20006",
        "",
    ],
)
def test_dates_that_are_not_clear_have_no_value(text: str) -> None:
    assert value_of("DATE", text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$3.5 million", "3500000 USD"),
        ("$.5 million", "500000 USD"),
        ("-$160.169 million", "-160169000 USD"),
        ("nearly a billion dollars", "1000000000 USD"),
        ("$ 25,000", "25000 USD"),
        ("75 cents", "0.75 USD"),
        ("€5bn", "5000000000 EUR"),
        ("£5bn", "5000000000 GBP"),
        ("US$ 3.2 million", "3200000 USD"),
        ("$20 m", "20000000 USD"),
        ("$5k", "5000 USD"),
        ("twenty-five euros", "25 EUR"),
        ("£3", "3 GBP"),
        ("A$3", "3 AUD"),
        ("5 million Canadian dollars", "5000000 CAD"),
        ("USD 5", "5 USD"),
        ("$1.999", None),
        ("$1,00,000", None),
        ("€1.000.000,5", None),
        ("¥100", None),
        ("$100 a month", None),
        ("£10 5s", None),
        ("half a million dollars", None),
        ("25,000", None),
        ("$1,23", None),
        ("$5 to $10 million", None),
        ("10 Egyptian pounds", None),
        ("$5 million dollars", None),
        ("1 extra dollar", None),
        ("Australian dollars", None),
        ("$", None),
    ],
)
def test_money_is_an_amount_and_a_currency(text: str, value: str | None) -> None:
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
        ("one thousand nine hundred and forty-five", "1945"),
        ("two hundred thousand", "200000"),
        ("a hundred", "100"),
        ("one hundred and five", "105"),
        ("5bn", "5000000000"),
        ("20 m", None),
        ("2.5m", None),
        ("5 k", None),
        ("3 b", None),
        ("five m", None),
        ("10 K run", None),
        ("6'2", None),
        ("1/2", None),
        ("½", None),
        ("1 1/2", None),
        ("1,00,000", None),
        ("1.000.000,5", None),
        ("100 000", None),
        ("1,5", None),
        ("007", None),
        ("5th", None),
        ("dozen", None),
        ("millions", None),
        ("one-third", None),
        ("nineteen forty-five", None),
        ("one two", None),
        ("ten one", None),
        ("a thousand million", None),
        ("1.515", None),
        ("2-3", None),
        ("9" * 30, None),
        ("٣", None),
    ],
)
def test_numbers_are_digits_or_words(text: str, value: str | None) -> None:
    assert value_of("CARDINAL", text) == value


@pytest.mark.parametrize(
    ("label", "text", "value"),
    [
        ("PERCENT", "4%", "4%"),
        ("PERCENT", "over 10 percent", "10%"),
        ("PERCENT", "-4.5 per cent", "-4.5%"),
        ("PERCENT", "eleven per cent", "11%"),
        ("PERCENT", "twenty-five percent", "25%"),
        ("PERCENT", "1/2 percent", None),
        ("PERCENT", "3 m%", None),
        ("PERCENT", "1.5 percentage points", None),
        ("PERCENT", "12.4 to 3.2 percent", None),
        ("ORDINAL", "first", None),
        ("TIME", "5 pm", None),
        ("PER", "1945", None),
        ("Date", "1945", "1945"),
    ],
)
def test_other_labels_have_a_value_of_their_own_or_none(label: str, text: str, value: str | None) -> None:
    assert value_of(label, text) == value


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
