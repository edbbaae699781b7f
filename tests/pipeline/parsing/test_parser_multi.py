"""The bundled parser for languages that write spaces: words, tags and trees of all, and how a job comes to it."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from concord_testing.parses import check_tree, documents_of

from concord.models.bundles.checkpoint import load_tagger
from concord.models.data.outputs import PredictOptions
from concord.models.errors import ModelError
from concord.models.words.encoder import FrozenEncoder
from concord.models.words.encoder_config import EncoderConfig
from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import DeadLetter, ParsedDocument, ParsedSentence
from concord.pipeline.errors import InputError
from concord.pipeline.parsing import encoder_parser, stanza_packages
from concord.pipeline.parsing.biaffine import BiaffineConfig, BiaffineNetwork, Words
from concord.pipeline.parsing.parser import Parser
from concord.pipeline.parsing.resolve_parser import load_parser, parser_for, parser_identity
from concord.pipeline.parsing.tokens import WordAnalysis
from concord.pipeline.worker.stages import TagStage
from concord.workflows.registry import BUNDLED_FOLDER

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


def check_tags_and_tree(sentence: ParsedSentence) -> None:
    assert all(word.upos and word.deprel for word in sentence.words)
    check_tree(sentence)


def test_sentences_and_words_have_true_offsets_that_depend_on_no_other_document(parser: Parser) -> None:
    texts = [" ".join(sentences) for sentences in SENTENCES.values()]
    together = parse(parser, texts)
    for document, expected in zip(together, SENTENCES.values(), strict=True):
        text = document.document.text
        assert [text[one.words[0].start_char : one.words[-1].end_char] for one in document.sentences] == expected
        words = [word for one in document.sentences for word in one.words]
        assert all(text[word.start_char : word.end_char] == word.text for word in words)
        # The words of a multi-word token share its place.
        tokens = dict.fromkeys((word.start_char, word.text) for word in words)
        assert "".join(token for _, token in tokens) == text.replace(" ", "")
        assert {word.text for word in words} >= {"."}
        for one in document.sentences:
            check_tags_and_tree(one)
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


SHORT = [
    "lol who even reads the manual",
    "Storm shuts port of Rotterdam",
    "just landed in Oslo!! so tired",
    "Prices up 3 % in May",
    "ok",
    "Mayor denies all charges",
    "@maria see you at 8?",
    "Lost cat near the old mill",
    "No comment from Brussels",
    "best. concert. ever.",
    "Fire at school, nobody hurt",
    "thx! will call u tmrw",
]


def test_short_english_texts_have_tags_and_trees(parser: Parser) -> None:
    for document in parse(parser, SHORT):
        assert document.sentences
        for one in document.sentences:
            check_tags_and_tree(one)


def test_lemmas_and_tags_of_treebanks_are_given_where_their_language_is_sure(parser: Parser) -> None:
    english, portuguese, greek = parse(
        parser,
        ["She was reading the letters that came on Friday.", *(" ".join(SENTENCES[one]) for one in ("pt", "el"))],
    )
    found = {word.word: (word.lemma, word.upos, word.xpos) for one in english.sentences for word in one.words}
    assert found["was"] == ("be", "AUX", "VBD")
    assert found["letters"] == ("letter", "NOUN", "NNS")
    [opened] = [word for one in portuguese.sentences for word in one.words if word.word == "abriu"]
    assert (opened.lemma, opened.upos, opened.xpos) == ("abrir", "VERB", None)
    assert "Tense=Past" in (opened.feats or "")
    assert {word.lemma for one in greek.sentences for word in one.words} <= {None, ".", ","}
    assert {word.xpos for one in greek.sentences for word in one.words} == {None}


def test_contractions_are_their_words(parser: Parser) -> None:
    [document] = parse(parser, ["O museu da cidade fica no centro."])
    words = [(word.word, word.text) for one in document.sentences for word in one.words]
    assert words[2:4] == [("de", "da"), ("a", "da")]
    assert ("em", "no") in words


ENGLISH = "The ferry couldn't leave on Tuesday. Nobody in the town knew why the mayor had closed the bridge."
TEXTS = [
    " ".join(SENTENCES["pt"]),
    ENGLISH,
    "",
    "東京は日本の首都です。",
    "Oslo 2004.",
    ENGLISH[:36],
    " ".join(SENTENCES["el"]),
]


def test_long_sentences_are_parsed_in_pieces_of_which_each_has_a_root(
    parser: Parser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("concord.pipeline.parsing.parser.SENTENCE_CAP", 7)
    monkeypatch.setattr(encoder_parser, "_GROUP_WORDS", 30)
    documents = documents_of([*TEXTS, " ".join(40 * ["gold"])])
    together = parser.parse(documents)
    assert together == [parser.parse([document])[0] for document in documents]
    pieces = [one for document in together if isinstance(document, ParsedDocument) for one in document.sentences]
    assert any(one.continues for one in pieces)
    for one in pieces:
        check_tags_and_tree(one)


def test_trees_and_tags_may_be_left_out(parser: Parser) -> None:
    documents = documents_of(TEXTS)
    whole = parser.parse(documents)
    tags, words = (load_parser(MULTI.model_copy(update=one)).parse(documents) for one in (NO_TREES, NO_TAGS))
    for full, tagged, bare in zip(whole, tags, words, strict=True):
        if isinstance(full, ParsedDocument):
            assert isinstance(tagged, ParsedDocument)
            assert isinstance(bare, ParsedDocument)
            assert [one.words for one in tagged.sentences] == [
                tuple(word._replace(head=None, deprel=None) for word in one.words) for one in full.sentences
            ]
            assert [[word[:4] for word in one.words] for one in bare.sentences] == [
                [word[:4] for word in one.words] for one in full.sentences
            ]
            assert {word[4:] for one in bare.sentences for word in one.words} <= {WordAnalysis()}


NO_TREES = {"trees": False}
NO_TAGS = {"trees": False, "tags": False}


def test_words_that_are_given_are_parsed_like_those_of_a_text(parser: Parser) -> None:
    [document] = parse(parser, [ENGLISH[:36]])
    [sentence] = document.sentences
    [found] = parser.parse_words([[word.word for word in sentence.words]])
    assert list(found) == [word[4:] for word in sentence.words]


def test_words_that_are_told_as_done_never_become_fewer(parser: Parser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_parser, "_GROUP_WORDS", 10)
    told: list[tuple[int, int]] = []
    parser.parse(documents_of(TEXTS), on_batch=lambda done, words: told.append((done, words)))
    shares = [done / max(1, words) for done, words in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_the_tagger_reads_what_the_parser_has_read(parser: Parser, monkeypatch: pytest.MonkeyPatch) -> None:
    tagger = load_tagger(BUNDLED_FOLDER / "entities_multi")
    documents = parse(parser, TEXTS[:2])
    encoded: list[Sequence[tuple[str, ...]]] = []
    encode = FrozenEncoder._encode

    def record(self: FrozenEncoder, sentences: Sequence[tuple[str, ...]], *, wide: bool = False) -> list[torch.Tensor]:
        encoded.append(sentences)
        return encode(self, sentences, wide=wide)

    monkeypatch.setattr(FrozenEncoder, "_encode", record)
    stage = TagStage(tagger, PredictOptions())
    stage.run(documents)
    assert not any(encoded)


def test_the_identity_covers_the_network_the_encoder_and_what_is_left_out(
    parser: Parser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def identity(**settings: object) -> str:
        return parser_identity(MULTI.model_copy(update=settings)).digest

    assert parser.identity == parser_identity(MULTI)
    assert parser.identity.name == "stanza/parser_multi"
    found = [
        identity(),
        identity(trees=False),
        identity(trees=False, tags=False),
        parser_identity(ParserConfig()).digest,
    ]
    monkeypatch.setattr(stanza_packages, "ENCODER", EncoderConfig(passage_words=100))
    assert len({*found, identity()}) == 5


def test_a_damaged_network_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(BUNDLED_FOLDER / "parser_multi", tmp_path / "parser_multi")
    (tmp_path / "parser_multi" / "network.safetensors").write_bytes(b"x")
    monkeypatch.setattr(stanza_packages, "_EMBEDDED_FOLDERS", tmp_path)
    with pytest.raises(ModelError, match="parser_multi cannot be read from"):
        load_parser(MULTI)
    (tmp_path / "parser_multi" / "network.safetensors").unlink()
    with pytest.raises(InputError, match=r"network\.safetensors: cannot be read"):
        parser_identity(MULTI)


def test_the_parser_of_a_tagger_is_taken_where_the_job_names_none() -> None:
    assert parser_for("parser_multi", ParserConfig()) == MULTI
    assert parser_for("parser_multi", ParserConfig(), device="cuda").device == "cuda"
    assert parser_for("parser_multi", ParserConfig(device="cpu"), device="cuda").device == "cpu"
    named = ParserConfig(package="parser_en")
    assert parser_for("parser_multi", named, device="cuda") is named
    assert parser_for("parser_en", ParserConfig(), device="cuda").device == "cpu"
    # A later run takes the package from its collection.
    assert parser_for("parser_multi", MULTI, device="cuda").device == "cuda"
    assert parser_for(None, ParserConfig()) == ParserConfig()


def test_products_in_int8_have_about_the_scores_of_the_modules() -> None:
    torch.manual_seed(1)
    config = BiaffineConfig.from_mapping(
        {"width": 8, "hidden": 12, "lstm": 6, "arcs": 5, "relation_units": 4}
        | {"upos": ["X", "Y"], "xpos": ["_"], "languages": ["a", "b"], "features": {"F": ["_", "1"]}}
        | {"relations": ["root", "r", "s"]}
    )
    network = BiaffineNetwork(config).eval().requires_grad_(False)
    lengths = [3, 1, 7, 2]
    states, words = torch.randn(sum(lengths), 8), Words.of(lengths)
    expected = scores(network, states, words)
    network.round_products()
    with torch.no_grad():
        found = scores(network, states, words)
    for name, left, right in zip(("tags", "arcs", "relations"), found, expected, strict=True):
        cells = left.shape[0] if name == "tags" else None
        kept = slice(None) if cells else torch.arange(7) < torch.tensor(lengths)[:, None]
        torch.testing.assert_close(left[kept], right[kept], rtol=0.1, atol=0.02, msg=name)


def scores(network: BiaffineNetwork, states: torch.Tensor, words: Words) -> list[torch.Tensor]:
    tags, contexts = network.read(states, words)
    assert contexts is not None
    arcs = network.arc_scores(contexts)
    columns = torch.arange(8) <= words.lengths[:, None]
    arcs = arcs.masked_fill(~columns[:, None], 0)
    return [tags, arcs, network.relation_scores(contexts, torch.zeros(4, 7, dtype=torch.int64))]
