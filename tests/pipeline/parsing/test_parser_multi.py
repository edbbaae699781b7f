"""The bundled parser for languages that write spaces: sentences and words, and how a job comes to it."""

from collections.abc import Sequence

import pytest

from concord.models.errors import ModelError
from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import DeadLetter, Document, ParsedDocument
from concord.pipeline.parsing.resolve_parser import load_parser, parser_for, parser_identity
from concord.pipeline.parsing.stanza_parser import StanzaParser

WORDS_ALONE = ParserConfig(package="parser_multi", trees=False, tags=False)
SENTENCES = {
    "pt": ["A ponte abriu em 1886.", "O arquiteto, porém, morreu antes da inauguração do viaduto."],
    "hr": ["Grad je na rijeci.", "Most su obnovili 2004. godine, a gradonačelnica ga je otvorila."],
    "sr": ["Река тече кроз град.", "Мост је отворен у суботу, рекла је градоначелница."],
    "da": ["Broen åbnede i lørdags.", "Borgmesteren sagde, at den havde kostet for meget."],
    "sk": ["Most otvorili v sobotu.", "Primátorka povedala, že stál príliš veľa."],
    "sv": ["Bron öppnades i lördags.", "Borgmästaren sade att den hade kostat för mycket."],
    "de": ["Die Brücke wurde am Samstag eröffnet.", "Sie habe zu viel gekostet, sagte die Bürgermeisterin."],
    "fr": ["Le pont a ouvert samedi.", "Il a coûté trop cher, selon la maire."],
    "el": ["Η γέφυρα άνοιξε το Σάββατο.", "Κόστισε πάρα πολύ, είπε η δήμαρχος."],
}


@pytest.fixture(scope="module")
def parser() -> StanzaParser:
    return StanzaParser(WORDS_ALONE)


def parse(parser: StanzaParser, texts: Sequence[str]) -> list[ParsedDocument]:
    documents = [Document(doc_id=str(n), text=text, source_uri="m", source_position=n) for n, text in enumerate(texts)]
    found = []
    for outcome in parser.parse(documents):
        assert isinstance(outcome, ParsedDocument)
        found.append(outcome)
    return found


@pytest.mark.parametrize("language", SENTENCES)
def test_sentences_and_words_have_true_offsets(parser: StanzaParser, language: str) -> None:
    text = " ".join(SENTENCES[language])
    [document] = parse(parser, [text])
    assert [text[one.words[0].start_char : one.words[-1].end_char] for one in document.sentences] == SENTENCES[language]
    words = [word for one in document.sentences for word in one.words]
    assert all(text[word.start_char : word.end_char] == word.text == word.word for word in words)
    assert "".join(word.text for word in words) == text.replace(" ", "")
    assert {word.text for word in words} >= {"."}
    assert all(word.head is None and word.upos is None and word.lemma is None for word in words)


def test_a_document_does_not_depend_on_the_others_of_a_batch(parser: StanzaParser) -> None:
    texts = [" ".join(sentences) for sentences in SENTENCES.values()]
    together = parse(parser, texts)
    alone = [parse(parser, [text])[0] for text in texts]
    assert [one.sentences for one in together] == [one.sentences for one in alone]


def test_words_broken_at_the_end_of_a_line_are_one(parser: StanzaParser) -> None:
    [document] = parse(parser, ["Borg-\nmästaren sade ingenting.\nBron är öppen."])
    assert document.sentences[0].words[0].word == "Borgmästaren"


def test_words_of_several_scripts_stand_in_one_text(parser: StanzaParser) -> None:
    text = "Влада је рекла: Regeringen har beslutat. שלום עולם."
    [document] = parse(parser, [text])
    words = [word.text for one in document.sentences for word in one.words]
    assert {"Влада", "Regeringen", "beslutat", "שלום", "עולם"} <= set(words)


def test_text_without_spaces_is_a_dead_letter(parser: StanzaParser) -> None:
    [outcome] = parser.parse([Document(doc_id="1", text="東京は日本の首都です。", source_uri="m", source_position=0)])
    assert isinstance(outcome, DeadLetter)
    assert outcome.error == "no_spaces"


@pytest.mark.parametrize("trees", [True, False])
def test_trees_and_tags_are_refused(trees: bool) -> None:
    with pytest.raises(ModelError, match=r"parser_multi finds sentences and words.*set both to false"):
        parser_identity(ParserConfig(package="parser_multi", trees=trees))


def test_the_parser_of_a_tagger_is_taken_where_the_job_names_none() -> None:
    assert parser_for("parser_multi", ParserConfig()) == WORDS_ALONE
    named = ParserConfig(package="parser_en")
    assert parser_for("parser_multi", named) is named
    assert parser_for(None, ParserConfig()) == ParserConfig()
    with pytest.raises(ModelError, match="set both to false"):
        load_parser(parser_for("parser_multi", ParserConfig(trees=True)))
