"""The parser with its embedded package: offsets, trees, odd text, and the shortcuts against plain Stanza."""

import itertools
import logging
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest
import torch
from concord_testing.finished_runs import null_columns
from concord_testing.parses import ODD, check_parse, check_tokens, documents_of, parse_text, plain_parser
from hypothesis import assume, given
from hypothesis import strategies as st

from concord.models.errors import ConfigError, ModelError
from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import DeadLetter, ParsedDocument
from concord.pipeline.parsing import parser as parsing
from concord.pipeline.parsing import stanza_fast, stanza_packages, stanza_pipeline, stanza_tokenizer
from concord.pipeline.parsing.resolve_parser import parser_identity
from concord.pipeline.parsing.stanza_fast import find_addresses
from concord.pipeline.parsing.stanza_parser import StanzaParser
from concord.pipeline.parsing.words import is_unspaced

pytestmark = pytest.mark.slow

EMBEDDED = Path(parsing.__file__).parents[2] / "models" / "pretrained" / "parser_en"

PROSE = [
    "Maria Gonzalez flew to Geneva on Tuesday. She met Bob, who couldn't stay.\n\nGeneva was cold.",
    "The ferry to Harwich leaves at 7:45 p.m.; bring $1,250.50 and call (713) 555-0142 before 28/10/2004.\n"
    "Address: 12 Quay Street\nFax: none",
    "See https://example.org/a/b?c=d or write to jan.kowalski@mail.example.com. They're gonna love it!!! Really?!",
    "If the harbour, which had been closed since the storm that broke the northern pier, were to open again before "
    "the summer, the fishermen whose boats lie in the canal would, so the mayor of the town said, be the first to "
    "leave, and the owners of the three hotels that overlook the bay, the last to complain.",
    "I. Introduction\n\nBy Anna B. Smith, Ph.D.\n\n\n1. Scope\n2. Terms\n\n* * *\n\n_Emphasis_ and -- dashes",
    "Population: 19,115,781 (2025 est.)\nBirths: 1.234.567,89 or 1,2 and 12,34,567; 3,4,5 (see 1.2.3).",
    "What a day\n\nWe walked. We sat. We ate. Nobody spoke, not even Karl, whose cousin's wedding it was.",
]


def test_parser_returns_words_tags_and_a_tree(parser: StanzaParser) -> None:
    [sentence] = parse_text(parser, "Anna visited the old house.").sentences
    assert [(w.start_char, w.end_char, w.text, w.word) for w in sentence.words] == [
        (0, 4, "Anna", "Anna"),
        (5, 12, "visited", "visited"),
        (13, 16, "the", "the"),
        (17, 20, "old", "old"),
        (21, 26, "house", "house"),
        (26, 27, ".", "."),
    ]
    assert [w.upos for w in sentence.words] == ["PROPN", "VERB", "DET", "ADJ", "NOUN", "PUNCT"]
    assert [w.lemma for w in sentence.words] == ["Anna", "visit", "the", "old", "house", "."]
    assert [w.head for w in sentence.words] == [2, 0, 5, 5, 2, 2]
    assert [w.deprel for w in sentence.words] == ["nsubj", "root", "det", "amod", "obj", "punct"]
    assert sentence.words[1].xpos == "VBD"
    assert "Tense=Past" in (sentence.words[1].feats or "")
    assert sentence.words[5].feats is None
    assert not sentence.continues


def test_parser_splits_multi_word_tokens_at_their_slices(parser: StanzaParser) -> None:
    document = parse_text(parser, "They don't see John's dog.")
    words = [(w.start_char, w.end_char, w.text) for w in document.sentences[0].words]
    assert words[1:3] == [(5, 7, "do"), (7, 10, "n't")]
    assert words[4:6] == [(15, 19, "John"), (19, 21, "'s")]


@given(st.text(max_size=60))
def test_tokens_cover_any_text(parser: StanzaParser, text: str) -> None:
    assume(not is_unspaced(text))
    check_tokens(parse_text(parser, text))


def test_no_documents_and_documents_without_visible_text_have_no_sentences(parser: StanzaParser) -> None:
    assert parser.parse([]) == []
    assert [parse_text(parser, ODD[name]).sentences for name in ("empty", "blank")] == [(), ()]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("Population: 19,115,781 (2025 est.)", ["19,115,781", "2025"]),
        ("The appropriation came to 24,224 million dollars.", ["24,224"]),
        ("It was 1.234.567,89 there and 12,34,567 here.", ["1.234.567,89", "12,34,567"]),
        ("Total\n1,018,349,714\n509,174,857", ["1,018,349,714", "509,174,857"]),
    ],
)
def test_a_number_is_one_word(parser: StanzaParser, text: str, numbers: list[str]) -> None:
    document = parse_text(parser, text)
    check_tokens(document)
    words = [word.word for sentence in document.sentences for word in sentence.words]
    assert [word for word in words if word[0].isdigit()] == numbers


def test_windows_1252_controls_are_read_as_punctuation(parser: StanzaParser) -> None:
    words = [w for s in parse_text(parser, "It was late \x97 too late.").sentences for w in s.words]
    [dash] = [word for word in words if word.text == "\x97"]
    assert (dash.start_char, dash.word, dash.upos) == (12, "\u2014", "PUNCT")


def test_long_token_keeps_its_whole_form_and_lemma(parser: StanzaParser) -> None:
    blob = "0123456789abcdef" * 190
    words = [w for s in parse_text(parser, ODD["long_token"]).sentences for w in s.words]
    [word] = [word for word in words if len(word.text) > 1000]
    assert word.text == word.word == word.lemma == blob


def test_parse_depends_neither_on_the_other_documents_nor_on_shortcuts(
    parser: StanzaParser, plain: StanzaParser
) -> None:
    documents = documents_of([*PROSE, *ODD.values(), "\n\n".join(PROSE), *(prose.lower() for prose in PROSE)])
    together = parser.parse(documents)
    for outcome in together:
        check_parse(outcome)
    assert plain.parse(documents) == together
    order = list(range(len(documents)))
    random.Random(4).shuffle(order)
    assert parser.parse([documents[index] for index in order]) == [together[index] for index in order]
    assert [parser.parse([document])[0] for document in documents[:9]] == together[:9]


LEFT_OUT = {"trees": ["trees"], "tags": ["trees", "tags"]}


@pytest.mark.parametrize("left_out", LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_is_left_out_is_null_and_not_loaded_and_all_else_stays(
    parser: StanzaParser, left_out: Sequence[str]
) -> None:
    config = ParserConfig.from_mapping(dict.fromkeys(left_out, False))
    unused = {"trees": {"depparse"}, "tags": {"pos", "lemma"}}
    loaded = {"tokenize", "mwt", "pos", "lemma", "depparse"}.difference(*(unused[part] for part in left_out))
    plain = plain_parser(config)
    assert set(stanza_packages.find_package(config).processors) == set(plain._stanza._nlp.processors) == loaded
    documents = documents_of([*PROSE[:3], ODD["long_token"], ODD["decomposed"], ODD["empty"]])
    short = StanzaParser(config).parse(documents)
    assert short == plain.parse(documents)
    for outcome, whole in zip(short, parser.parse(documents), strict=True):
        assert isinstance(outcome, ParsedDocument)
        assert isinstance(whole, ParsedDocument)
        assert [sentence.words for sentence in outcome.sentences] == [
            tuple(word._replace(**null_columns(left_out)) for word in sentence.words) for sentence in whole.sentences
        ]


def test_trees_need_tags() -> None:
    with pytest.raises(ConfigError, match=r"tags: expected true where trees is true.*set parser.trees=false too"):
        ParserConfig.from_mapping({"tags": False})


def test_another_stanza_version_is_used_without_shortcuts(
    parser: StanzaParser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (stanza_fast, stanza_packages):
        monkeypatch.setattr(module, "version", lambda name: "1.99.0")
    with caplog.at_level(logging.WARNING, logger="concord.pipeline.parsing.stanza_parser"):
        other = StanzaParser(ParserConfig())
    [record] = [record for record in caplog.records if record.name == "concord.pipeline.parsing.stanza_parser"]
    assert "1.99.0" in record.getMessage()
    documents = documents_of(PROSE[:2])
    assert other.parse(documents) == parser.parse(documents)
    assert other.identity.version == "1.99.0"
    assert other.identity.digest != parser.identity.digest


def test_a_sentence_above_the_cap_is_parsed_in_pieces(parser: StanzaParser, monkeypatch: pytest.MonkeyPatch) -> None:
    [whole] = parse_text(parser, PROSE[3]).sentences
    words = [word.word for word in whole.words]
    monkeypatch.setattr("concord.pipeline.parsing.parser.SENTENCE_CAP", 10)
    document = parse_text(parser, PROSE[3])
    check_tokens(document)
    pieces = document.sentences
    assert max(len(piece.words) for piece in pieces) <= 10
    assert [piece.continues for piece in pieces] == [False, *[True] * (len(pieces) - 1)]
    assert [word.word for piece in pieces for word in piece.words] == words
    # Words are cut like raw text, and each piece has a root.
    (found,) = parser.parse_words([words])
    firsts = itertools.accumulate((len(piece.words) for piece in pieces), initial=0)
    expected = [
        word.head + first if word.head else 0
        for first, piece in zip(firsts, pieces, strict=False)
        for word in piece.words
    ]
    assert [word.head for word in found] == expected
    assert expected.count(0) == len(pieces) > 4


def test_parse_words_returns_the_trees_of_raw_text(parser: StanzaParser) -> None:
    sentences = [sentence for text in PROSE for sentence in parse_text(parser, text).sentences]
    found = parser.parse_words([[word.word for word in sentence.words] for sentence in sentences])
    for sentence, words in zip(sentences, found, strict=True):
        assert [
            (word.lemma, word.upos, word.xpos, word.feats, word.head, word.deprel) for word in sentence.words
        ] == list(words)
    assert parser.parse_words([]) == []


def test_long_paragraph_is_tokenized_in_windows_without_visible_cuts(
    parser: StanzaParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stanza_tokenizer, "_WINDOW", 3_000)
    sentence = "Anna Smith lives in Paris with two cats, and she couldn't be happier. "
    document = parse_text(parser, sentence * 80)
    check_tokens(document)
    assert len(document.sentences) == 80
    assert len({tuple(word.word for word in found.words) for found in document.sentences}) == 1
    [found] = parse_text(parser, "x" * 4_000).sentences
    assert [(word.start_char, word.end_char) for word in found.words] == [(0, 4_000)]


def test_uncovered_text_becomes_a_dead_letter_with_its_position(
    plain: StanzaParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without our view of the text, Stanza takes U+0097 for white space and loses it.
    monkeypatch.setattr(parsing, "parser_view", lambda text: text)
    good, bad = plain.parse(documents_of(["All is well.", "It was\x97he said\x97fine."]))
    assert isinstance(good, ParsedDocument)
    assert isinstance(bad, DeadLetter)
    assert (bad.doc_id, bad.position, bad.stage, bad.error) == ("d1", 1, "parse", "offsets")
    assert bad.message.startswith("document 'd1': expected tokens that cover the text")
    assert "U+0097 at 6" in bad.message


def test_parser_uses_one_thread_and_restores_the_number_of_threads(
    parser: StanzaParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, seen = torch.get_num_threads(), []
    monkeypatch.setattr(parsing, "find_token_fault", lambda *_: seen.append(torch.get_num_threads()))
    torch.set_num_threads(2)
    try:
        parser.parse(documents_of(["All is well."]))
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def test_identity_depends_on_weights_and_on_settings_that_change_the_parse(
    parser: StanzaParser, tmp_path: Path
) -> None:
    identity = parser_identity(ParserConfig())
    assert identity == parser.identity
    assert (identity.name, len(identity.digest)) == ("stanza/parser_en", 64)
    others = [ParserConfig(trees=False), ParserConfig(trees=False, tags=False)]
    assert len({identity.digest, *(parser_identity(config).digest for config in others)}) == 3
    assert parser_identity(ParserConfig(batch_documents=7)).digest == identity.digest
    folder = shutil.copytree(EMBEDDED, tmp_path / "packages")
    config = ParserConfig(package="compact", directory=str(folder))
    digest = parser_identity(config).digest
    with (folder / "en/lemma/compact.pt").open("ab") as stream:
        stream.write(b"\0")
    assert parser_identity(config).digest != digest


def test_installed_package_is_used(parser: StanzaParser, tmp_path: Path) -> None:
    folder = shutil.copytree(EMBEDDED, tmp_path / "packages")
    installed = StanzaParser(ParserConfig(package="compact", language="english", directory=str(folder)))
    documents = documents_of(PROSE[:2])
    assert installed.parse(documents) == parser.parse(documents)
    assert installed.identity.digest != parser.identity.digest


@pytest.mark.parametrize(("package", "language"), [("default", "en"), ("compact", "en"), ("default", "fi")])
def test_package_that_is_not_installed_is_reported_with_how_to_install_it(
    tmp_path: Path, package: str, language: str
) -> None:
    config = ParserConfig(package=package, language=language, directory=str(tmp_path))
    with pytest.raises(ModelError) as caught:
        parser_identity(config)
    assert f"stanza.download('{language}', package='{package}'" in str(caught.value)
    assert str(tmp_path / "resources.json") in str(caught.value)


@pytest.mark.parametrize(
    ("package", "language", "missing"),
    [("gum", "en", "package 'gum' with a tokenize model"), ("default", "fi", "'fi' in ")],
)
def test_package_that_is_not_listed_is_reported(package: str, language: str, missing: str) -> None:
    with pytest.raises(ModelError, match=missing):
        parser_identity(ParserConfig(package=package, language=language, directory=str(EMBEDDED)))


def test_missing_and_damaged_weights_are_model_errors(tmp_path: Path) -> None:
    folder = shutil.copytree(EMBEDDED, tmp_path / "packages")
    config = ParserConfig(package="compact", directory=str(folder))
    for name in ("tokenize", "mwt", "pos", "lemma", "depparse"):
        path = folder / "en" / name / "compact.pt"
        content = path.read_bytes()
        path.write_bytes(content[:1000])
        with pytest.raises(ModelError, match="cannot load"):
            StanzaParser(config)
        path.write_bytes(content)
    path.unlink()
    with pytest.raises(ModelError, match=r"there is no .*depparse/compact\.pt"):
        StanzaParser(config)


def test_embedded_package_is_rejected_for_another_language() -> None:
    with pytest.raises(ModelError, match="is for language 'en', not 'de'"):
        parser_identity(ParserConfig(language="de"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_missing_device_raises_a_model_error() -> None:
    with pytest.raises(ConfigError, match="expected a CUDA device, found none"):
        StanzaParser(ParserConfig(device="cuda"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_cuda_output_equals_cpu_output(parser: StanzaParser) -> None:
    documents = documents_of([*PROSE, *ODD.values()])
    on_gpu = StanzaParser(ParserConfig(device="cuda")).parse(documents)
    assert on_gpu == parser.parse(documents)


def test_loading_a_pipeline_leaves_stanza_and_imports_as_they_are() -> None:
    from stanza.models.common import utils

    before, finders = utils.dispatch_optimizer, list(sys.meta_path)
    package = stanza_packages.find_package(ParserConfig())
    nlp = stanza_pipeline.load_pipeline(package, device="cpu")
    assert utils.dispatch_optimizer is before
    assert sys.meta_path == finders
    (group,) = nlp.processors["tokenize"].trainer.optimizer.param_groups
    assert group["lr"] == nlp.processors["tokenize"].trainer.args["lr0"]


def test_a_hidden_module_is_hidden_from_one_thread_only() -> None:
    hidden = stanza_pipeline._HidingFinder()
    with pytest.raises(ModuleNotFoundError, match="No module named 'transformers'"):
        hidden.find_spec("transformers", None)
    hidden.find_spec("transformers.utils", None)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(hidden.find_spec, "transformers", None).result()


def test_a_deferred_module_is_imported_when_it_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = "concord_deferred_module"
    monkeypatch.setattr(stanza_pipeline, "_DEFERRED", frozenset({name}))
    (tmp_path / f"{name}.py").write_text("answer = 42\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with stanza_pipeline._without_unused_imports():
        deferred = import_module(name)
        assert import_module(name) is deferred
    assert name not in sys.modules
    assert deferred.answer == 42
    assert import_module(name) is not deferred
    with pytest.raises(AttributeError):
        _ = deferred.missing
    monkeypatch.delitem(sys.modules, name)


def test_stanza_is_imported_without_what_it_does_not_use() -> None:
    code = (
        "import sys; from concord.pipeline.config import ParserConfig; "
        "from concord.pipeline.parsing.stanza_packages import find_package; "
        "from concord.pipeline.parsing.stanza_pipeline import load_pipeline; "
        "load_pipeline(find_package(ParserConfig()), device='cpu'); "
        "print(sorted(sys.modules.keys() & {'IPython', 'emoji', 'networkx', 'requests', 'transformers'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", done.stderr


PIECES = (
    *("a", "b", "A", "1", ".", "-", "@", '"', "\\", ":", "/", "[", "]", " ", "_", "+", "\u00e9", "..", "www", "www."),
    *("http://", "https://", ".com", ".co", ".org", "a@b.com", '"@'),
)


@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_addresses_are_those_of_stanza(text: str) -> None:
    from stanza.models.tokenization.utils import MASK_RE

    assert list(find_addresses(text)) == [match.span() for match in MASK_RE.finditer(text)]


def test_long_runs_of_one_character_cost_no_more_than_prose(parser: StanzaParser) -> None:
    # Stanza's own expression would need hours.
    for run in ("a", "aA", "A", "-", "a-", "a.", "/", "1", "http://", "www.", "a@"):
        for before in ("@ ", "see www.a.org "):
            list(find_addresses(before + run * (60_000 // len(run))))
    for text in ("(" * 4_000, "@ " + "a" * 40_000):
        check_tokens(parse_text(parser, text))


def test_the_bundled_parser_refuses_a_chinese_text_and_says_what_to_do(parser: StanzaParser) -> None:
    refused, parsed = parser.parse(
        documents_of(["北京大学位于海淀区。\n\n它成立于1898年。", "Ada met 北京大学 staff."])
    )
    assert isinstance(refused, DeadLetter)
    assert refused.error == "no_spaces"
    assert "parser.language" in refused.message
    assert isinstance(parsed, ParsedDocument)
    assert "北京大学" in [word.text for sentence in parsed.sentences for word in sentence.words]
