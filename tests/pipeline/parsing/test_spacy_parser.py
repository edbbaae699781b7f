"""A spaCy pipeline as the parser: its words, tags and trees, with the promises of every parser."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import spacy
from concord_testing.finished_runs import null_columns
from concord_testing.parses import ODD, check_parse, check_tokens, documents_of, parse_text
from concord_testing.spacy_pipelines import FRENCH
from hypothesis import given
from hypothesis import strategies as st

from concord.models.errors import ConfigError, ModelError
from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import ParsedDocument
from concord.pipeline.parsing import spacy_parser
from concord.pipeline.parsing.parser import Parser
from concord.pipeline.parsing.resolve_parser import load_parser, parser_identity

TEXT = "Anna habite à Lyon. L'ami dort.\n\n  Bob voit l'ami."
pytestmark = pytest.mark.slow(reason="trains a spaCy pipeline and imports spaCy")


@pytest.fixture
def folder(french_pipeline: Path) -> Path:
    return french_pipeline


@pytest.fixture(scope="module")
def parser(french_pipeline: Path) -> Parser:
    return load_parser(config_of(french_pipeline))


def config_of(folder: Path, **changes: object) -> ParserConfig:
    return ParserConfig.from_mapping({"package": f"spacy:{folder}", **changes})


def test_words_sentences_tags_and_trees_are_those_of_the_pipeline(parser: Parser, folder: Path) -> None:
    document = parse_text(parser, TEXT)
    check_tokens(document)
    assert [
        [(word.word, word.upos, word.head, word.deprel) for word in sentence.words] for sentence in document.sentences
    ] == [
        [(word, tag, head, relation.replace("ROOT", "root")) for word, tag, head, relation, _ in sentence]
        for sentence in FRENCH
    ]
    first = document.sentences[0].words[3]
    assert (first.start_char, first.end_char, first.lemma, first.xpos) == (14, 18, None, None)
    doc = spacy.load(folder)(TEXT)
    found = [(token.idx, token.text, token.pos_) for token in doc if not token.is_space]
    words = [word for sentence in document.sentences for word in sentence.words]
    assert [(word.start_char, word.word, word.upos) for word in words] == found
    assert parser.parse_words([[word for word, *_ in FRENCH[0]]]) == [
        tuple(word[4:] for word in document.sentences[0].words)
    ]


def test_words_cover_odd_text_and_do_not_depend_on_the_other_documents(parser: Parser) -> None:
    # Readers refuse a lone surrogate.
    documents = documents_of([TEXT, *(text for name, text in ODD.items() if name != "lone_surrogate"), TEXT.upper()])
    together = parser.parse(documents)
    for document in together:
        check_parse(document)
    assert [parser.parse([document])[0] for document in documents] == together
    assert parser.parse(documents[::-1]) == together[::-1]


@given(st.text(max_size=60) | st.text("ab. \n", max_size=60))
def test_words_cover_any_text(parser: Parser, text: str) -> None:
    check_parse(parse_text(parser, text))


def test_a_long_document_is_read_in_parts_that_show_nowhere(parser: Parser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spacy_parser, "_PART_CHARACTERS", 500)
    document = parse_text(parser, "Anna habite à Lyon. " * 100)
    check_tokens(document)
    assert len({tuple(word[3:] for word in sentence.words) for sentence in document.sentences}) == 1
    assert len(document.sentences) == 100
    for text in ("a" * 600 + " b.", "a." * 300):
        check_tokens(parse_text(parser, text))


def test_a_long_document_without_white_space_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spacy_parser, "_PART_CHARACTERS", 500)
    spacy.blank("zh").to_disk(tmp_path / "chinese")
    parser = load_parser(config_of(tmp_path / "chinese"))
    nlp, lengths = parser._nlp, list[int]()  # type: ignore[attr-defined]
    tokenizer = nlp.tokenizer

    def tokenize(text: str) -> Any:
        lengths.append(len(text))
        return tokenizer(text)

    nlp.tokenizer = tokenize
    document = parse_text(parser, "安娜住在里昂。" * 200)
    check_tokens(document)
    assert [len(sentence.words) for sentence in document.sentences] == [7] * 200
    assert max(lengths) < 510


def test_a_sentence_above_the_cap_is_parsed_in_pieces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concord.pipeline.parsing.parser.SENTENCE_CAP", 10)
    parser = load_parser(config_of(folder))
    document = parse_text(parser, "L' ami " * 20 + "dort.")
    check_parse(document)
    assert [len(sentence.words) for sentence in document.sentences if sentence.continues] != []
    assert max(len(sentence.words) for sentence in document.sentences) <= 10


def test_a_pipeline_without_components_splits_at_punctuation_and_leaves_columns_null(tmp_path: Path) -> None:
    spacy.blank("fr").to_disk(tmp_path / "blank")
    document = parse_text(load_parser(config_of(tmp_path / "blank")), TEXT)
    check_tokens(document)
    assert [len(sentence.words) for sentence in document.sentences] == [5, 4, 5]
    assert {word[4:] for sentence in document.sentences for word in sentence.words} == {(None,) * 6}


@pytest.mark.parametrize("left_out", [["trees"], ["trees", "tags"]])
def test_what_is_left_out_is_null_and_all_else_stays(parser: Parser, folder: Path, left_out: list[str]) -> None:
    short = parse_text(load_parser(config_of(folder, **dict.fromkeys(left_out, False))), TEXT)
    assert [sentence.words for sentence in short.sentences] == [
        tuple(word._replace(**null_columns(left_out)) for word in sentence.words)
        for sentence in parse_text(parser, TEXT).sentences
    ]


def test_identity_is_that_of_files_and_settings_wherever_they_are(parser: Parser, folder: Path, tmp_path: Path) -> None:
    identity = parser_identity(config_of(folder))
    assert identity == parser.identity
    moved = shutil.copytree(folder, tmp_path / "moved")
    assert parser_identity(config_of(moved)) == identity
    others = [config_of(folder, tags=False, trees=False), config_of(folder, trees=False)]
    assert len({identity.digest, *(parser_identity(config).digest for config in others)}) == 3
    with (moved / "parser" / "model").open("ab") as file:
        file.write(b"x")
    assert parser_identity(config_of(moved)).digest != identity.digest


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ("no_such_pipeline", "install it with 'python -m spacy download no_such_pipeline'"),
        ("{folder}/vocab", r"expected the folder of a spaCy pipeline, with config\.cfg"),
    ],
)
def test_a_pipeline_that_is_not_there_is_refused(folder: Path, package: str, message: str) -> None:
    with pytest.raises(ModelError, match=f"^parser.package: .*{message}"):
        parser_identity(ParserConfig(package="spacy:" + package.format(folder=folder)))


def test_a_broken_pipeline_and_another_device_are_refused(folder: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(folder, tmp_path / "broken")
    (broken / "parser" / "model").write_bytes(b"")
    with pytest.raises(ModelError, match=f"{broken}: expected a spaCy pipeline: "):
        load_parser(config_of(broken))
    with pytest.raises(ConfigError, match=r"parser.device: expected cpu"):
        parser_identity(config_of(folder, device="cuda"))


def test_memory_of_words_that_were_read_is_given_back(parser: Parser) -> None:
    [known] = parser.parse(documents_of(["Anna"]))
    assert isinstance(known, ParsedDocument)
    strings = parser._nlp.vocab.strings  # type: ignore[attr-defined]
    before = len(strings)
    parser.parse(documents_of([f"mot{number}" for number in range(100)]))
    assert len(strings) == before
