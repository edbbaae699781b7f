"""Tests of the colours of entity types."""

import re
from importlib.resources import files

from concord.pipeline.report.type_colours import COLOURS, type_colours

NAMES = """
PERSON NORP FAC ORG GPE LOC PRODUCT EVENT WORK_OF_ART LAW LANGUAGE DATE TIME PERCENT MONEY QUANTITY ORDINAL CARDINAL
"""
SPACY = NAMES.split()


def test_eighteen_types_of_spacy_have_different_colours() -> None:
    assert len(set(type_colours(SPACY).values())) == len(SPACY) == 18


def test_a_usual_type_has_the_same_colour_wherever_it_occurs() -> None:
    alone = {kind: type_colours([kind])[kind] for kind in SPACY}
    assert type_colours(SPACY) == alone
    assert type_colours(["PER", "DRUG", "DOSE", "LOC"]) == type_colours(["LOC", "DOSE", "PER", "DRUG"])


def test_other_types_have_different_colours_until_there_are_no_more() -> None:
    many = [f"TYPE-{number}" for number in range(70)]
    assert len(set(type_colours(many[:COLOURS]).values())) == COLOURS
    colours = type_colours([*SPACY, *many])
    assert set(colours.values()) == set(range(COLOURS))
    assert {kind: colours[kind] for kind in SPACY} == type_colours(SPACY)
    assert type_colours(["\ud800"])["\ud800"] < COLOURS


def test_the_stylesheet_has_every_colour_in_light_and_dark() -> None:
    style = files("concord.pipeline.report").joinpath("style.css").read_text(encoding="utf-8")
    for number in range(COLOURS):
        selectors = re.findall(r"((?:\.t\d+,? )+)\{ --tint", style)
        assert sum(f".t{number}" in selector.replace(",", "").split() for selector in selectors) == 2
