"""The bundled parser for languages that write spaces: words of all, trees of English, and how a job comes to it."""

from collections.abc import Sequence

import pytest
from concord_testing.parses import documents_of

from concord.models.data.outputs import OnBatch
from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import DeadLetter, Document, ParsedDocument
from concord.pipeline.parsing import resolve_parser
from concord.pipeline.parsing.parser import Parser
from concord.pipeline.parsing.resolve_parser import load_parser, parser_for, parser_identity
from concord.pipeline.parsing.stanza_parser import StanzaParser

pytestmark = pytest.mark.slow

MULTI = ParserConfig(package="parser_multi")
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
def parser() -> Parser:
    return load_parser(MULTI)


def parse(parser: Parser, texts: Sequence[str]) -> list[ParsedDocument]:
    found = []
    for outcome in parser.parse(documents_of(texts)):
        assert isinstance(outcome, ParsedDocument)
        found.append(outcome)
    return found


def test_sentences_and_words_have_true_offsets_that_depend_on_no_other_document(parser: Parser) -> None:
    texts = [" ".join(sentences) for sentences in SENTENCES.values()]
    together = parse(parser, texts)
    for document, expected in zip(together, SENTENCES.values(), strict=True):
        text = document.document.text
        assert [text[one.words[0].start_char : one.words[-1].end_char] for one in document.sentences] == expected
        words = [word for one in document.sentences for word in one.words]
        assert all(text[word.start_char : word.end_char] == word.text == word.word for word in words)
        assert "".join(word.text for word in words) == text.replace(" ", "")
        assert {word.text for word in words} >= {"."}
        assert all(word.head is None and word.upos is None and word.lemma is None for word in words)
    alone = [parse(parser, [text])[0] for text in texts]
    assert [one.sentences for one in together] == [one.sentences for one in alone]


def test_broken_words_several_scripts_and_texts_without_spaces(parser: Parser) -> None:
    broken = "Borg-\nmästaren sade ingenting.\nBron är öppen."
    mixed = "Влада је рекла: Regeringen har beslutat. שלום עולם."
    first, second = parse(parser, [broken, mixed])
    assert first.sentences[0].words[0].word == "Borgmästaren"
    words = {word.text for one in second.sentences for word in one.words}
    assert {"Влада", "Regeringen", "beslutat", "שלום", "עולם"} <= words
    [refused] = parser.parse(documents_of(["東京は日本の首都です。"]))
    assert isinstance(refused, DeadLetter)
    assert refused.error == "no_spaces"


ENGLISH = "The ferry couldn't leave on Tuesday. Nobody in the town knew why the mayor had closed the bridge."
UNSURE = "Oslo 2004."
TEXTS = [
    " ".join(SENTENCES["pt"]),
    ENGLISH,
    "",
    "東京は日本の首都です。",
    UNSURE,
    ENGLISH[:36],
    " ".join(SENTENCES["el"]),
]
IN_ENGLISH = [1, 5]


@pytest.mark.parametrize(("trees", "tags"), [(True, True), (False, True)])
def test_english_is_read_as_by_parser_en_and_all_else_as_by_the_tokenizer(
    trees: bool, tags: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("concord.pipeline.parsing.parser.SENTENCE_CAP", 10)
    config = MULTI.model_copy(update={"trees": trees, "tags": tags})
    parser, tokenizer = load_parser(config), StanzaParser(config)
    english = StanzaParser(config.model_copy(update={"package": "parser_en"}))
    documents = documents_of(TEXTS)
    together = parser.parse(documents)
    assert together == [parser.parse([document])[0] for document in documents]
    for number, document in enumerate(documents):
        expected = english if number in IN_ENGLISH else tokenizer
        assert [together[number]] == expected.parse([document])
        assert parser.split([document]) == expected.split([document])
    assert parser.split(documents) == [parser.split([document])[0] for document in documents]
    words = [
        {(word.head is None, word.upos is None, word.lemma is None) for one in document.sentences for word in one.words}
        for document in together
        if isinstance(document, ParsedDocument)
    ]
    whole, alone = {(not trees, not tags, not tags)}, {(True, True, True)}
    assert words == [alone, whole, set(), alone, whole, alone]


def test_the_documents_of_a_call_are_one_batch_of_each_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def record(parser: Parser, documents: Sequence[Document], *, on_batch: OnBatch | None = None) -> list[DeadLetter]:
        calls.append([document.text for document in documents])
        return [DeadLetter.for_document(document, stage="parse", error="x", message="") for document in documents]

    parser = load_parser(MULTI.model_copy(update={"trees": False, "tags": False}))
    monkeypatch.setattr(StanzaParser, "parse", record)
    found = parser.parse(documents_of(TEXTS))
    assert [one.position for one in found if isinstance(one, DeadLetter)] == [*range(len(TEXTS))]
    assert sorted(map(len, calls)) == [len(IN_ENGLISH), len(TEXTS) - len(IN_ENGLISH)]
    parser.parse(documents_of([ENGLISH]))
    assert calls[2:] == [[ENGLISH]]


def test_words_that_are_told_as_done_never_become_fewer(parser: Parser) -> None:
    told: list[tuple[int, int]] = []
    parser.parse(documents_of(TEXTS), on_batch=lambda done, words: told.append((done, words)))
    shares = [done / max(1, words) for done, words in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_the_identity_covers_both_packages_and_the_model_of_languages(
    parser: Parser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def identity(**settings: object) -> str:
        return parser_identity(MULTI.model_copy(update=settings)).digest

    assert parser.identity == parser_identity(MULTI)
    assert parser.identity.name == "stanza/parser_multi"
    found = [identity(), identity(trees=False), identity(trees=False, tags=False)]
    found += [parser_identity(ParserConfig()).digest, StanzaParser(MULTI).identity.digest]
    monkeypatch.setattr(resolve_parser, "version", lambda name: "another" if name == "py3langid" else "")
    assert len({*found, identity()}) == 6


def test_the_parser_of_a_tagger_is_taken_where_the_job_names_none() -> None:
    assert parser_for("parser_multi", ParserConfig()) == MULTI
    named = ParserConfig(package="parser_en")
    assert parser_for("parser_multi", named) is named
    assert parser_for(None, ParserConfig()) == ParserConfig()
