"""The guideline of names: what its rules make of labels, and the command that mends corpora by it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from concord.models.data.sentence import Sentence
from concord.models.labels import decode_spans
from concord.workflows.corpora import read_corpora
from research.entities_en.guideline import CORPORA, Lexicon, main, mend


def labelled(text: str) -> Sentence:
    """Read words with names in brackets: ``[PER Mr. Smith] left [LOC Rome]``."""
    words: list[str] = []
    labels: list[str] = []
    label = "O"
    for token in text.split():
        if token.startswith("["):
            label = f"B-{token[1:]}"
            continue
        words.append(token.removesuffix("]"))
        labels.append(label)
        label = "O" if token.endswith("]") or label == "O" else f"I-{label[2:]}"
    return Sentence(words=tuple(words), labels=tuple(labels))


def bracketed(sentence: Sentence) -> str:
    """Write words with names in brackets."""
    words = list(sentence.words)
    for span in decode_spans(sentence.labels or (), "BIO"):
        words[span.start] = f"[{span.label} {words[span.start]}"
        words[span.end - 1] += "]"
    return " ".join(words)


def mended(text: str, *others: str, rules: list[str] | None = None) -> str:
    """Mend a sentence of a corpus whose training part has other sentences too."""
    document = [labelled(text), *map(labelled, others)]
    return bracketed(mend(document, Lexicon.of([document]), rules).sentences[0])


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        ("[PER Mr. Smith] met [PER Vice President Adams]", "Mr. [PER Smith] met Vice President [PER Adams]"),
        ("[PER Dr . Smith 's] house", "Dr . [PER Smith] 's house"),
        ("the [PER Duke of Kent]", "the [PER Duke of Kent]"),
        ("[PER the late Lady Smith]", "the late Lady [PER Smith]"),
        ("[PER de Smet] and [PER poor Tom]", "[PER de Smet] and poor [PER Tom]"),
        ("[PER Captain America]", "[PER Captain America]"),
        ("[PER President] or [PER Madam Speaker]", "President or Madam Speaker"),
        ("[PER Mayor of Rome] in [LOC Rome]", "Mayor of [LOC Rome] in [LOC Rome]"),
        ("[PER Ann Lee from the Green Party]", "[PER Ann Lee] from the Green Party"),
        ("[PER King] spoke", "[PER King] spoke"),
    ],
)
def test_titles_and_roles_are_no_part_of_a_person(published: str, expected: str) -> None:
    """A title that is the name stays, and so does one that is a surname."""
    assert mended(published) == expected


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        ("the [LOC Nation] and the [ORG Court]", "the Nation and the Court"),
        ("the [ORG Senate] of the [LOC nation]", "the [ORG Senate] of the nation"),
        ("[ORG Federal Government]", "Federal Government"),
        ("[LOC French] and [LOC South African] wine", "French and South African wine"),
        ("[ORG French Line] sailed", "[ORG French Line] sailed"),
        ("[ORG The Australian] and [ORG American]", "[ORG The Australian] and [ORG American]"),
        ("the [PER Americans] met [PER German]", "the Americans met [PER German]"),
        ("[LOC the Rhine]", "the [LOC Rhine]"),
        ("[LOC The Hague]", "[LOC The Hague]"),
        ("[ORG Trinity College in Dublin]", "[ORG Trinity College] in [LOC Dublin]"),
        ("[PER @] [PER ann @ bob]", "@ [PER ann] @ [PER bob]"),
    ],
)
def test_common_nouns_and_adjectives_of_places_are_no_names(published: str, expected: str) -> None:
    """They stay inside the names of organisations."""
    assert mended(published) == expected


def test_the_corpus_decides_what_is_part_of_a_name() -> None:
    """A final possessive and a first article stay out where the corpus mostly has the name without."""
    shop = "[ORG Macy 's] and [ORG The Bank]"
    assert mended(shop) == shop
    seen = ["[ORG Macy] [ORG Bank]"] * 2
    assert mended(shop, *seen) == "[ORG Macy] 's and The Bank"


def test_small_words_before_a_place_go_unless_they_are_its_name() -> None:
    """A word counts as an epithet when the corpus has it outside of names."""
    outside = "the eastern and the north side"
    assert mended("[LOC eastern Kent]", outside) == "eastern [LOC Kent]"
    assert mended("[LOC north Carolina]", outside, "[LOC North Carolina]") == "[LOC north Carolina]"
    assert mended("[PER ann Lee]", outside) == "[PER ann Lee]"


def test_a_country_is_a_place_unless_it_plays() -> None:
    """Where a document speaks of matches, a country may be its team; one sentence alone says too little."""
    assert mended("[ORG France] signed", "It is done .") == "[LOC France] signed"
    assert mended("[ORG France] won", "The match is over .") == "[ORG France] won"
    assert mended("[ORG France] signed") == "[ORG France] signed"


def test_rules_are_chosen_by_name_and_counted() -> None:
    """A rule that is not chosen changes nothing; each counts the names that it changes."""
    document = [labelled("[PER Mr. Smith] of the [LOC Nation]")]
    chosen = mend(document, Lexicon.of([document]), ["titles"])
    assert bracketed(chosen.sentences[0]) == "Mr. [PER Smith] of the [LOC Nation]"
    assert +chosen.changed == {"titles": 1}


@pytest.fixture
def corpora(tmp_path: Path) -> Path:
    """Return a folder with the five corpora, of one sentence a part."""
    for corpus in CORPORA:
        (tmp_path / corpus).mkdir()
        for part in ("train", "dev"):
            text = "-DOCSTART-\ta\n\nMr.\tB-PER\nSmith\tI-PER\nleft\tO\nRome\tB-GPE\n\n"
            (tmp_path / corpus / f"{part}.conll").write_text(text, encoding="utf-8")
    return tmp_path


def test_the_command_counts_and_writes_corpora(corpora: Path, tmp_path: Path) -> None:
    """A corpus may keep what a rule would change; types are those of the models."""
    target = tmp_path / "mended"
    arguments = [str(corpora), "--without", "btc:titles", "--output", str(target)]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    counts = json.loads(result.output)
    assert counts["wikigold"]["dev"]["titles"] == counts["wikigold"]["dev"]["changed"] == 1
    assert counts["btc"]["dev"]["changed"] == 0
    for corpus, person in (("btc", "[PER Mr. Smith]"), ("wikigold", "Mr. [PER Smith]")):
        [[sentence]] = read_corpora([str(target / corpus / "dev.conll")], labels={})
        assert bracketed(sentence) == f"{person} left [LOC Rome]"


def test_an_unknown_rule_is_refused(corpora: Path) -> None:
    """The message names the rules that there are."""
    result = CliRunner().invoke(main, [str(corpora), "--rules", "titles,hats"])
    assert result.exit_code == 2
    assert "got hats" in result.output
    assert "common_nouns" in result.output
