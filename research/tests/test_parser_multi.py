"""The training of the parser of all languages: texts, labels, the network, and a package that the parser loads."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import Document, ParsedDocument
from concord.pipeline.parsing import stanza_packages
from concord.pipeline.parsing.biaffine import BiaffineNetwork, read_network
from concord.pipeline.parsing.resolve_parser import load_parser
from concord.pipeline.parsing.stanza_packages import LEMMAS_NAME, NETWORK_NAME
from research.parser_en import raw_text
from research.parser_en.conllu import ConlluSentence
from research.parser_en.raw_text import Token
from research.parser_multi import __main__ as commands
from research.parser_multi import labels, network, pack, texts
from research.parser_multi.corpora import treebanks
from research.parser_multi.labels import Labels, Numbers

pytestmark = pytest.mark.slow

GERMAN = """# newdoc id = a
1\tSie\tsie\tPRON\tPPER\tNumber=Plur|Person=3\t2\tnsubj\t_\t_
2\tgehen\tgehen\tVERB\tVVFIN\tNumber=Plur\t0\troot\t_\t_
3-4\tzum\t_\t_\t_\t_\t_\t_\t_\t_
3\tzu\tzu\tADP\tAPPR\t_\t5\tcase\t_\t_
4\tdem\tder\tDET\tART\t_\t5\tdet\t_\t_
5\tMarkt\tMarkt\tNOUN\tNN\tNumber=Sing\t2\tobl:arg\t_\t_

"""
SERBIAN = """1\tLjudi\tčovek\tNOUN\tNcmpn\t_\t2\tnsubj\t_\t_
2\tidu\tići\tVERB\tVm\tNumber=Plur\t0\troot\t_\t_

"""


@pytest.fixture
def corpora(tmp_path: Path) -> Path:
    """Return a folder with two treebanks."""
    (tmp_path / "treebanks").mkdir()
    (tmp_path / "treebanks" / "de_gsd.dev.conllu").write_text(GERMAN, encoding="utf-8")
    (tmp_path / "treebanks" / "sr_set.dev.conllu").write_text(SERBIAN * 2, encoding="utf-8")
    return tmp_path


def sentences(corpora: Path) -> list[ConlluSentence]:
    return [one for path in treebanks(corpora) for document in labels.read_treebank(path) for one in document]


def test_serbian_in_cyrillic_keeps_words_that_are_not_serbian() -> None:
    written = "Njegoš i DŽON Washington, Ljubljana 2010."
    assert texts.cyrillic(written) == "Његош и ЏОН Washington, Љубљана 2010."


def test_a_form_that_two_languages_expand_differently_or_that_is_mostly_one_word_stays_whole(corpora: Path) -> None:
    paths = treebanks(corpora)
    assert texts.expansions(paths) == {"zum": "zu dem"}
    other = corpora / "other.conllu"
    other.write_text(GERMAN.replace("3\tzu\t", "3\tze\t"), encoding="utf-8")
    assert texts.expansions([*paths, other]) == {}
    other.write_text(GERMAN + SERBIAN.replace("idu", "zum") * 5, encoding="utf-8")
    assert texts.expansions([other]) == {}
    assert texts.all_cases({"zum": "zu dem"}) == {"zum": "zu dem", "Zum": "Zu dem", "ZUM": "ZU DEM"}


def test_clitics_are_apart_and_only_what_can_be_expanded_is_a_multi_word_token() -> None:
    sentence = [Token("Bob's", 2, True), Token("zum", 2, True), Token("gonna", 2, False)]
    [marked] = texts.marked([sentence], {"zum": "zu dem"})
    assert marked == [Token("Bob", 1, False), Token("'s", 1, True), Token("zum", 2, True), Token("gonna", 1, False)]
    assert raw_text.labelled([marked]) == ("Bob's zum gonna", "001010003000002")


def test_labels_have_the_numbers_of_their_names(corpora: Path) -> None:
    german, serbian, _ = sentences(corpora)
    assert set(german.languages) == {"de"}
    assert serbian.xpos == ("_", "_")  # Serbian's tags are left out
    config = labels.names_of([german, serbian], 8)
    assert config.features == {"Number": ("_", "Plur", "Sing"), "Person": ("_", "3")}
    found = Numbers(config).gold(german)
    assert [config.upos[number] for number in found.upos[:, 0]] == list(german.upos)
    assert [config.relations[number] for number in found.relations] == list(german.relations)
    assert found.features.tolist() == [[1, 1], [1, 0], [0, 0], [0, 0], [2, 0]]
    assert found.heads[:, 0].tolist() == [2, 0, 5, 5, 2]
    assert found.head_chances.sum(axis=1).tolist() == [1.0] * 5


def test_the_network_learns_what_the_states_tell(corpora: Path, tmp_path: Path) -> None:
    own = sentences(corpora)
    config = labels.names_of(own, 16).model_copy(update={"hidden": 24, "lstm": 12, "arcs": 12, "relation_units": 12})
    joined = Labels.joined([Numbers(config).gold(one) for one in own])
    states = np.random.default_rng(1).normal(size=(sum(joined.lengths), 16)).astype(np.float16)
    corpus = network.Corpus("all", joined, states)
    settings = network.Settings(epochs=40, rate=2e-2, dropout=0.0)
    trained = network.train(config, [corpus], [], settings, tmp_path / "network.pt")
    assert network.scores(trained, corpus) == dict.fromkeys(("upos", "xpos", "feats", "languages", "uas", "las"), 100.0)
    # As a teacher it says the same, in the order of the sentences.
    lengths = [len(one.words) for one in own[:2]]
    found = network.label([trained, trained], states, lengths, "sr")
    words = sum(lengths)
    for name in ("upos", "xpos", "heads"):
        assert (getattr(found, name)[:, 0] == getattr(joined, name)[:words, 0]).all()
    assert (found.relations == joined.relations[:words]).all()
    assert (found.features == joined.features[:words]).all()
    assert set(found.languages) == {config.languages.index("sr")}
    assert found.head_chances[:, 0].min() > 0.9


def test_lemmas_of_capitals_are_kept_where_they_differ_and_serbian_has_both_scripts(corpora: Path) -> None:
    german, serbian, _ = sentences(corpora)
    other = german._replace(lemmas=("Sie", *german.lemmas[1:]), words=("sie", *german.words[1:]))
    found = pack.lemmas([german, german, other, serbian])
    assert found["de"]["sie\tPRON"] == "sie"
    assert "Sie\tPRON" not in found["de"]
    assert found["de"]["markt\tNOUN"] == "Markt"
    assert found["sr"]["људи\tNOUN"] == "човек"
    assert found["sr"]["ljudi\tNOUN"] == "čovek"


def test_the_parser_loads_a_package(corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, output = tmp_path / "work", tmp_path / "parser_multi"
    work.mkdir()
    bundled = stanza_packages._EMBEDDED_FOLDERS / "parser_multi" / "multilingual" / "tokenize" / "compact.pt"
    (work / "tokenize.pt").write_bytes(bundled.read_bytes())
    config = labels.names_of(sentences(corpora), 8)
    (work / NETWORK_NAME).write_text(config.model_dump_json(), encoding="utf-8")
    torch.save(BiaffineNetwork(config).state_dict(), work / "network.pt")
    for _ in range(2):
        pack.pack(work, output, sentences(corpora), {"zum": "zu dem"})
    assert read_network(output, device="cpu").config == config
    assert json.loads(gzip.decompress((output / LEMMAS_NAME).read_bytes()))["de"]["gehen\tVERB"] == "gehen"
    monkeypatch.setattr(stanza_packages, "_EMBEDDED_FOLDERS", tmp_path)
    parser: Any = load_parser(ParserConfig(package="parser_multi", tags=False, trees=False))
    [found] = parser.parse([Document(doc_id="1", text="Sie gehen.", source_uri="a", source_position=0)])
    assert isinstance(found, ParsedDocument)
    assert [word.word for word in found.sentences[0].words] == ["Sie", "gehen", "."]
    assert parser._stanza._expand([_Marked("Zum")]) == {"Zum": ["Zu", "dem"]}


class _Marked:
    is_multi_word = True

    def __init__(self, text: str) -> None:
        self.text = text


def test_the_steps_make_a_network_of_treebanks_and_texts(corpora: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    english = corpora / "labelled" / "ewt_uner"
    english.mkdir(parents=True)
    for part in ("train", "dev"):
        (english / f"{part}.conllu").write_text(GERMAN, encoding="utf-8")

    def write_states(path: Path, documents: Sequence[Sequence[Sequence[str]]]) -> None:
        words = sum(len(one) for document in documents for one in document)
        np.save(path, np.random.default_rng(1).normal(size=(words, 8)).astype(np.float16))

    for module in (commands, network):
        monkeypatch.setattr(module, "write_states", write_states)
    monkeypatch.setattr(commands, "WIDTH", 8)
    monkeypatch.setattr(commands, "_TEACHER", commands._TEACHER._replace(epochs=1))
    monkeypatch.setattr(commands, "_ROUNDS", [one._replace(epochs=1) for one in commands._ROUNDS])
    read = [("a", "sr", [[("Ljudi", "idu"), ("Idu",)]]), ("b", "en", [[("Bob", "goes")]])]
    monkeypatch.setattr(commands, "documents_to_label", lambda _: iter(read))
    work = corpora / "work"
    for step in ("states", "teacher", "silver", "network"):
        arguments = [step, str(work), *([str(corpora)] if step in {"states", "silver"} else [])]
        found = CliRunner().invoke(commands.main, arguments, catch_exceptions=False)
        assert found.exit_code == 0, found.output
    gold, dev = commands._gold(work)
    assert [one.name for one in gold] == ["de", "en", "sr", "sr_cyrillic"]
    assert dev.labels.lengths.tolist() == [5]
    silver = network.Corpus.read(work / "silver" / "a.npz")
    assert silver.labels.lengths.tolist() == [2, 1]
    config = commands._config(work)
    assert {config.languages[number] for number in silver.labels.languages} == {"sr"}
    start, end = (network.load(config, work / f"{name}.pt") for name in ("teacher-1", "network"))
    assert not torch.equal(start.hidden.weight, end.hidden.weight)
    assert torch.equal(start.scale, end.scale)
