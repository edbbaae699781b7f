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
        ("1 1/2", "1.5"),
        ("5-1/2", "5.5"),
        ("5 3/2", None),
        ("1 1/3", None),
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
        ("PERCENT", "22-percent", "22%"),
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


@pytest.mark.parametrize(
    ("label", "marked", "value"),
    [
        ("MONEY", "paid {$3.5}bn for", "3500000000 USD"),
        ("MONEY", "sold for {$2.4}m in", "2400000 USD"),
        ("MONEY", "over {$1.8} bln in", "1800000000 USD"),
        ("MONEY", "paid US{$3 million} for", "3000000 USD"),
        ("MONEY", "paid C{$3 million} for", "3000000 CAD"),
        ("MONEY", "{24,224} million dollars", "24224000000 USD"),
        ("MONEY", "24,{224 million dollars}", "24224000000 USD"),
        ("MONEY", "a {$3}m-a-year deal", "3000000 USD"),
        ("MONEY", "cost {$1} 1/2 million to", "1500000 USD"),
        ("MONEY", "balance: -{$1.017 billion} (2023)", "-1017000000 USD"),
        ("MONEY", "a loss of minus {$5}", "-5 USD"),
        ("CARDINAL", "births: {19},115,781 (2025", "19115781"),
        ("CARDINAL", "births: 19,{115,781} (2025", "19115781"),
        ("CARDINAL", "28.964 {billion} kWh", "28964000000"),
        ("CARDINAL", "{twenty}-five men", "25"),
        ("CARDINAL", "twenty-{five} men", "25"),
        ("CARDINAL", "it was −{5}", "-5"),
        ("PERCENT", "to 5 1/{2 percent} in", "5.5%"),
        ("PERCENT", "at 7 {7/8 percent}.", "7.875%"),
        ("PERCENT", "5-1/{2 percent}", "5.5%"),
        ("PERCENT", "rose {0.7} per cent in", "0.7%"),
        ("PERCENT", "fell\n-{5 percent}", "-5%"),
        ("DATE", "in May {1990}", "1990-05"),
        ("DATE", "on May 5, {1990}", "1990-05-05"),
        ("DATE", "the 5th of {May 1990}", "1990-05-05"),
        ("DATE", "on {May 5,1990}", "1990-05-05"),
    ],
)
def test_an_amount_is_read_with_what_was_cut_off(label: str, marked: str, value: str | None) -> None:
    assert value_beside(label, marked) == value


@pytest.mark.parametrize(
    ("label", "marked", "value"),
    [
        ("MONEY", "$3 and {$5 million} in all", "5000000 USD"),
        ("MONEY", "{$3 million} to $5 million", "3000000 USD"),
        ("MONEY", "gave us {$3 million}.", "3000000 USD"),
        ("MONEY", "in 2010 {$5}/barrel", "5 USD"),
        ("CARDINAL", "{two} men and three million", "2"),
        ("CARDINAL", "({5}), he", "5"),
        ("CARDINAL", "a {500}-page book", "500"),
        ("CARDINAL", "first {five} men", "5"),
        ("CARDINAL", "49.9% {16,016,448} 16,752,166", "16016448"),
        ("CARDINAL", "deaths/{1,000} births", "1000"),
        ("CARDINAL", "“{Five} men”", "5"),
        ("CARDINAL", "in one--{five} of", "5"),
        ("PERCENT", "{5%} to 6%", "5%"),
        ("PERCENT", "5% to {6%}", "6%"),
        ("PERCENT", "7/7/2024 {37.1%} May", "37.1%"),
        ("DATE", "from {1990} to 1995", "1990"),
        ("DATE", "in 1989, {1990}, 1991", "1990"),
        ("DATE", "AD {1066}", "1066"),
        ("DATE", "{1066} A.D.", "1066"),
        ("DATE", "in {1990}, 5 million", "1990"),
        ("DATE", "in {1990}--the year", "1990"),
    ],
)
def test_what_is_beside_an_amount_may_change_nothing(label: str, marked: str, value: str | None) -> None:
    assert value_beside(label, marked) == value


@pytest.mark.parametrize(
    ("label", "marked", "value"),
    [
        ("MONEY", "between {$3} and $5 million", None),
        ("MONEY", "cost {$2.5} to 3 million", None),
        ("MONEY", "paid {$1.5}-$2 billion", None),
        ("MONEY", "paid {$1.5} – 2 billion", None),
        ("MONEY", "{$3}, $4 and $5 million", None),
        ("MONEY", "{$5} and 30 cents", None),
        ("MONEY", "{£10}, 5s. in all", None),
        ("MONEY", "sold for {$2.4}mil", None),
        ("MONEY", "cost {$7 million} (Australian)", None),
        ("MONEY", "lost {$5 million} Canadian", None),
        ("MONEY", "Hong Kong {$3 million}", None),
        ("MONEY", "NZ {$3 million}", None),
        ("MONEY", "HK{$3 million}", None),
        ("MONEY", "{$5 million} (AUD)", None),
        ("MONEY", "{$5 million} in Canadian money", None),
        ("MONEY", "R{$5}", None),
        ("CARDINAL", "between {3} and 5 million", None),
        ("CARDINAL", "{five} to six million", None),
        ("CARDINAL", "{five}-to-six million", None),
        ("CARDINAL", "{two} and a half million", None),
        ("CARDINAL", "{1.2}-1.5 billion", None),
        ("CARDINAL", "{2} or 3 dozen", None),
        ("CARDINAL", "{two} dozen", None),
        ("CARDINAL", "{one} or two hundred", None),
        ("CARDINAL", "{a million}-dollar house", None),
        ("CARDINAL", "half {a million}", None),
        ("CARDINAL", "quarter of {a million}", None),
        ("CARDINAL", "{2} or 3 percent", None),
        ("CARDINAL", "{1}.234.567", None),
        ("CARDINAL", "{12} 000", None),
        ("CARDINAL", "12 {000}", None),
        ("CARDINAL", "{1},23,456", None),
        ("CARDINAL", "{1}'234", None),
        ("CARDINAL", "{5}m wide", None),
        ("CARDINAL", "{5} m wide", None),
        ("CARDINAL", "{3}k run", None),
        ("CARDINAL", "{3}:1", None),
        ("CARDINAL", "10:{30}", None),
        ("CARDINAL", "{one hundred} and five", None),
        ("CARDINAL", "one hundred and {five}", None),
        ("CARDINAL", "{twenty}-first", None),
        ("CARDINAL", "{10},5 km", None),
        ("CARDINAL", "{5} o'clock", None),
        ("CARDINAL", "{1}/3", None),
        ("CARDINAL", "{one}-third", None),
        ("CARDINAL", "{5}×10", None),
        ("CARDINAL", "{44} BC", None),
        ("CARDINAL", "{79} A.D.", None),
        ("CARDINAL", "{two} point five", None),
        ("CARDINAL", "{5} lakh", None),
        ("CARDINAL", "{3 million}, 200 thousand", None),
        ("CARDINAL", "{5}, 000 men", None),
        ("CARDINAL", "COVID-{19}", None),
        ("CARDINAL", "#{5}", None),
        ("CARDINAL", "10-{5}", None),
        ("CARDINAL", "{5}th", None),
        ("CARDINAL", "[1] ({202}) 612", None),
        ("CARDINAL", "[{1}] (202) 612", None),
        ("CARDINAL", "-٣{5}", None),
        ("PERCENT", "was 1,{5 %} in", None),
        ("PERCENT", "rose 2,{4 percent}", None),
        ("PERCENT", "one tenth of {1 percent}", None),
        ("PERCENT", "1/2 of {1 percent}", None),
        ("PERCENT", "5-{6%}", None),
        ("PERCENT", "at {5}½ percent", None),
        ("PERCENT", "growth - {5%}", None),
        ("DATE", "until {1066} B.C.", None),
        ("DATE", "in {1184} BC", None),
        ("DATE", "in {1274}\nB. C.", None),
        ("DATE", "{1274}–1258 BC", None),
        ("DATE", "from {1274} to 1258 BC", None),
        ("DATE", "in {1274} (or 1275) BCE", None),
        ("DATE", "BC {1274}", None),
        ("DATE", "{1400} AH", None),
        ("DATE", "mid-{1990}", None),
        ("DATE", "{1990}s", None),
        ("DATE", "{1990}'s", None),
        ("DATE", "c. {1500}", None),
        ("DATE", "ca. {1500}", None),
        ("DATE", "{2019}/20", None),
        ("DATE", "{1990}-95", None),
        ("DATE", "Q3 {2019}", None),
        ("DATE", "late {1990}", None),
        ("DATE", "spring of {1990}", None),
        ("DATE", "fiscal {1990}", None),
        ("DATE", "{1990} fiscal year", None),
        ("DATE", "May 1-5, {1990}", None),
        ("DATE", "5-7 {May 1990}", None),
        ("DATE", "May-{June 1990}", None),
        ("DATE", "{1945}-05-08", None),
        ("DATE", "{2500} years ago", None),
        ("DATE", "{1990} or so", None),
        ("DATE", "{1500} 000", None),
    ],
)
def test_what_is_beside_an_amount_may_leave_it_unclear(label: str, marked: str, value: str | None) -> None:
    assert value_beside(label, marked) == value


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
    assert value_beside("MONEY", "paid {$3.5}\u200b\u202f\n million for") == "3500000 USD"
    assert value_beside("CARDINAL", "{12}\u00a0000 men") is None
