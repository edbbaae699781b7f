"""Gold corpora: what the file says, faults with file and line, and what is written is read back."""

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concord.models.data.sentence import Sentence
from concord.models.errors import ConfigError
from concord.pipeline.corpora.corpus_format import CorpusScheme, Fault, GoldFormat
from concord.pipeline.corpora.gold_corpus import GoldDocument, GoldForm, read_corpus, read_gold, write_gold
from concord.pipeline.errors import InputError, StoreError
from concord.pipeline.storage import atomic_writes

CONLLU = """\
# newdoc id = first
# sent_id = 1
1-2\tZum\t_\t_\t_\t_\t_\t_\t_\t_
1\tZu\tzu\tADP\tAPPR\t_\t3\tcase\t_\tSpaceAfter=No
2\tdem\tder\tDET\tART\t_\t3\tdet\t_\t_
3\tRhein\tRhein\tPROPN\tNE\t_\t0\troot\t_\tNER=B-LOC|SpaceAfter=No
3.1\tgeht\tgehen\tVERB\t_\t_\t_\t_\t_\t_

# sent_id = 2
1\tJa\tja\tINTJ\t_\t_\t0\troot\t_\t_

# newdoc
# sent_id = 3
1\tAda\tAda\t_\t_\t_\t_\t_\t_\tNER=B-PER
2\tKing\tKing\t_\t_\t_\t_\t_\t_\tNER=I-PER
"""

TOKEN_LABELS = """\
1\tZu\tzu\tADP\tAPPR\t_\t3\tcase\t_\tSense=in|SpaceAfter=No
2\tdem\tder\tDET\tART\t_\t3\tdet\t_\tSense=the
3\tRhein\tRhein\tPROPN\tNE\t_\t0\troot\t_\tSense=river

# sent_id = 2
1\tJa\tja\tINTJ\tITJ\t_\t0\troot\t_\tSense=yes
"""

CONLL = "-DOCSTART-\tone\n\nAda\tB-PER\nKing\tI-PER\n\nyes\tO\n\n-DOCSTART-\ttwo\n\nno\tO\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_conllu_has_documents_words_labels_and_trees(tmp_path: Path) -> None:
    documents = read_gold(write(tmp_path / "a.conllu", CONLLU))
    assert [len(document) for document in documents] == [2, 1]
    assert documents[0][0] == Sentence(
        words=("Zu", "dem", "Rhein"),
        labels=("O", "O", "B-LOC"),
        tags=("ADP", "DET", "PROPN"),
        heads=(3, 3, 0),
        relations=("case", "det", "root"),
    )
    assert documents[1][0].labels == ("B-PER", "I-PER")
    assert documents[1][0].tags is None
    assert documents[1][0].heads is None
    assert documents[1][0].relations is None


def test_conll_has_documents_and_columns_separated_by_tabs_or_spaces(tmp_path: Path) -> None:
    documents = read_gold(write(tmp_path / "a.conll", CONLL))
    assert documents == [
        [Sentence(words=("Ada", "King"), labels=("B-PER", "I-PER")), Sentence(words=("yes",), labels=("O",))],
        [Sentence(words=("no",), labels=("O",))],
    ]
    text = "-DOCSTART- -X- -X- O\n\nAda NNP B-NP B-PER\n. . O O\n"
    assert read_gold(write(tmp_path / "a.conll", text)) == [[Sentence(words=("Ada", "."), labels=("B-PER", "O"))]]
    path = write(tmp_path / "a.conll", "She\tPRP\nran\tI-VBD\n")
    assert read_gold(path, GoldFormat(label_scheme="TOKENS"))[0][0].labels == ("PRP", "I-VBD")
    path = write(tmp_path / "a.txt", "1 I-PER NNP Ada\n2 O VBD slept\n")
    form = GoldFormat(format="conll", word_column=4, tag_column=3, label_column=2, label_scheme="IOB1")
    assert read_gold(path, form) == [[Sentence(words=("Ada", "slept"), labels=("B-PER", "O"), tags=("NNP", "VBD"))]]


@pytest.mark.parametrize(
    ("column", "labels"),
    [
        ("upos", [("ADP", "DET", "PROPN"), ("INTJ",)]),
        ("xpos", [("APPR", "ART", "NE"), ("ITJ",)]),
        ("Sense", [("in", "the", "river"), ("yes",)]),
    ],
)
def test_conllu_reads_token_labels_from_any_column(tmp_path: Path, column: str, labels: list[tuple[str, ...]]) -> None:
    path = write(tmp_path / "a.conllu", TOKEN_LABELS)
    documents = read_gold(path, GoldFormat(label_column=column, label_scheme="TOKENS"))
    assert [sentence.labels for document in documents for sentence in document] == labels


def test_conllu_reads_entities_from_any_key_of_misc(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conllu", CONLLU.replace("NER=", "Entity="))
    documents = read_gold(path, GoldFormat(label_column="Entity"))
    assert documents[1][0].labels == ("B-PER", "I-PER")


@pytest.mark.parametrize("column", ["xpos", "Sense"])
def test_word_without_a_token_label_is_reported(tmp_path: Path, column: str) -> None:
    text = TOKEN_LABELS.replace("ITJ", "_").replace("Sense=yes", "_")
    with pytest.raises(InputError, match=rf"a\.conllu:6: expected a label of the word \({column}\), got none"):
        read_gold(write(tmp_path / "a.conllu", text), GoldFormat(label_column=column, label_scheme="TOKENS"))


@pytest.mark.parametrize(
    ("name", "text"), [("a.conll", "yes\tO\n\n\nno\tO"), ("a.conllu", CONLLU.replace("# newdoc", "# text"))]
)
def test_each_sentence_is_a_document_when_the_corpus_has_none(tmp_path: Path, name: str, text: str) -> None:
    documents = read_gold(write(tmp_path / name, text))
    assert len(documents) >= 2
    assert all(len(document) == 1 for document in documents)


def test_compressed_files_are_read_like_plain_ones(tmp_path: Path) -> None:
    plain = read_gold(write(tmp_path / "a.conll", CONLL))
    (tmp_path / "a.conll.gz").write_bytes(gzip.compress(CONLL.encode()))
    (tmp_path / "a.conll.zst").write_bytes(pa.compress(CONLL.encode(), codec="zstd", asbytes=True))
    assert read_gold(tmp_path / "a.conll.gz") == plain
    assert read_gold(tmp_path / "a.conll.zst") == plain


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.conll", "yes\tO\nno\n", r"a\.conll:2: expected a word in column 1 and a label, separated"),
        ("a.conll", "yes\tX-PER\n", r"a\.conll:1: label: expected O or one of"),
        ("a.conll", "yes\tO\nno\tI-PER\n", r"a\.conll:2: 'I-PER' cannot follow O"),
        ("a.conll", "yes\tS-PER\n", r"a\.conll:1: expected BIO2"),
        ("a.conllu", "1\tyes\n", r"a\.conllu:1: expected 10 columns separated by tabs, got 2"),
        ("a.conllu", "2\ta\t_\t_\t_\t_\t_\t_\t_\t_\n", r"a\.conllu:1: expected word 1"),
        ("a.conllu", "1\ta\t_\t_\t_\t_\t7\tdep\t_\t_\n", r"a\.conllu:1: expected a head within 0\.\.1"),
        ("a.txt", "", r"expected a gold corpus named"),
    ],
)
def test_fault_names_file_and_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_gold(write(tmp_path / name, text))


def test_unreadable_file_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_bytes(b"yes\tO\nn\xff\tO\n")
    with pytest.raises(InputError, match=r"a\.conll:2: expected UTF-8, got byte 0xff at column 2"):
        read_gold(tmp_path / "a.conll")
    (tmp_path / "cut.conll.gz").write_bytes(gzip.compress(CONLL.encode() * 50)[:-9])
    for name in ("none.conll", "cut.conll.gz"):
        with pytest.raises(InputError, match="readable corpus file"):
            read_gold(tmp_path / name)


@pytest.mark.parametrize(
    ("scheme", "labels"),
    [("BIO2", "B-PER I-PER B-PER O"), ("IOB1", "I-PER I-PER B-PER O"), ("BIOES", "B-PER E-PER S-PER O")],
)
def test_labels_of_every_scheme_are_converted_to_bio2(tmp_path: Path, scheme: CorpusScheme, labels: str) -> None:
    rows = "".join(f"w\t{label}\n" for label in labels.split())
    path = write(tmp_path / "a.conll", f"-DOCSTART- -X- O O\n\n{rows}")
    for requested in (scheme, "auto"):
        corpus = read_corpus(path, GoldFormat(label_scheme=requested))
        assert corpus.label_scheme == scheme
        assert corpus.documents[0].sentences[0].labels == ("B-PER", "I-PER", "B-PER", "O")


def test_conll_white_space_other_than_tab_and_space_belongs_to_words(tmp_path: Path) -> None:
    text = "a\u2028b B-PER  \nno\u00a0way\tO  \n  c\u0085d  O\n   \ne\u2029f\tO"
    documents = read_gold(write(tmp_path / "a.conll", text))
    assert [document[0].words for document in documents] == [("a\u2028b", "no\u00a0way", "c\u0085d"), ("e\u2029f",)]
    (tmp_path / "b.conll").write_bytes("\ufeffa\u2028b\tB-PER\r\n\r\nno\u00a0way\tO\r\n".encode())
    assert [document[0].words for document in read_gold(tmp_path / "b.conll")] == [("a\u2028b",), ("no\u00a0way",)]


def test_conllu_ignores_byte_order_mark_and_line_end_style(tmp_path: Path) -> None:
    plain = read_gold(write(tmp_path / "plain.conllu", CONLLU.replace("Rhein\tRhein", "Rh\u2028ein\tRhein")))
    ends = ("\r\n", "\n", "\r", "  \n")
    lines = CONLLU.replace("Rhein\tRhein", "Rh\u2028ein\tRhein").split("\n")[:-1]
    mixed = "\ufeff" + "".join(line + ends[number % 4] for number, line in enumerate(lines))
    (tmp_path / "mixed.conllu").write_bytes(mixed.encode())
    assert plain[0][0].words == ("Zu", "dem", "Rh\u2028ein")
    assert read_gold(tmp_path / "mixed.conllu") == plain


def test_documents_have_names_and_lines(tmp_path: Path) -> None:
    conllu = read_corpus(write(tmp_path / "a.conllu", CONLLU)).documents
    assert [(document.name, document.lines) for document in conllu] == [("first", (4, 10)), ("", (14,))]
    conll = read_corpus(write(tmp_path / "a.conll", f"early\tO\n\n{CONLL}")).documents
    assert [(document.name, document.lines) for document in conll] == [(None, (1,)), ("one", (5, 8)), ("two", (12,))]
    four = write(tmp_path / "b.conll", "-DOCSTART- -X- -X- O\n\nyes UH B-NP O\n")
    assert read_corpus(four).documents[0].name == ""


def test_every_fault_is_reported_and_valid_sentences_are_read(tmp_path: Path) -> None:
    text = b"Ada\tI-PER\nKing\tI-PER\n\nno\n\nyes\tO\n\nn\\xff\tO\nx\tB\n".replace(b"\\xff", b"\xff")
    (tmp_path / "a.conll").write_bytes(text)
    faults: list[Fault] = []
    corpus = read_corpus(tmp_path / "a.conll", GoldFormat(), faults.append)
    assert [(fault.line, fault.repaired) for fault in sorted(faults, key=lambda fault: fault.line)] == [
        (1, "B-PER"), (4, None), (8, None), (9, None),
    ]  # fmt: skip
    labels = [document.sentences[0].labels for document in corpus.documents]
    assert labels == [("B-PER", "I-PER"), ("O",), ("O", "O")]


def test_label_column_must_fit_the_format_and_the_file(tmp_path: Path) -> None:
    for name, text, column, message in (
        ("a.conll", CONLL, "upos", "label_column: expected the number of a column for conll"),
        ("a.conllu", CONLLU, 4, "label_column: expected upos, xpos or a key of MISC for conllu"),
        ("a_gold_conll", "", "NER", "expected xpos for conll2012"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_gold(write(tmp_path / name, text), GoldFormat(label_column=column))
    path = write(tmp_path / "a.conll", "Ada\tNNP\tB-PER\nslept\tVBD\n")
    with pytest.raises(InputError, match=r"a\.conll:2: expected a word in column 1 and a label in column 3"):
        read_gold(path, GoldFormat(label_column=3))


def test_comments_at_the_start_of_a_document_are_its_metadata(tmp_path: Path) -> None:
    text = CONLLU.replace("# newdoc id = first\n", "# newdoc id = first\n# meta::genre = a = b\n# odd\n")
    first, second = read_corpus(write(tmp_path / "a.conllu", text)).documents
    assert first.metadata == {"genre": "a = b", "sent_id": "1"}
    assert second.metadata == {"sent_id": "3"}
    columns = read_corpus(write(tmp_path / "a.conll", CONLL))
    assert [dict(document.metadata) for document in columns.documents] == [{}, {}]


def faults_of(path: Path, **form: Any) -> list[str]:
    faults: list[Fault] = []
    read_corpus(path, GoldFormat(**form), faults.append)
    return [f"{fault.line}: {fault.message}" for fault in faults]


def word(number: object, form: str, misc: str, *, upos: str = "_", xpos: str = "_") -> str:
    return f"{number}\t{form}\t_\t{upos}\t{xpos}\t_\t_\t_\t_\t{misc}\n"


@pytest.mark.parametrize(
    ("first", "second", "looks"),
    [
        ("ner=S-PERSON", "name=B-PER", "ner= and name= look like labels: --label-column ner (train: --set data.label_"),
        ("ner=B-PER", "ner=O", "ner= looks like labels: --label-column ner"),
        ("NERtag=B-PER", "x=y", "NERtag= looks like labels"),
        ("Ner=PER", "_", "Ner= looks like labels"),
        ("Entity=(person-1", "Entity=1)", "Entity= looks like labels"),
        ("SpaceAfter=No|BIO=B-PER", "BIO=I-PER", "BIO= looks like labels"),
        ("NE=U-PER", "NE=L-PER", "NE= looks like labels"),
        ("B-PER", "O", "MISC without a key looks like labels: write them there"),
        ("NER:B-PER", "_", "MISC without a key looks like labels: write them there"),
    ],
)
def test_conllu_labels_that_are_not_read_are_a_fault(tmp_path: Path, first: str, second: str, looks: str) -> None:
    path = write(tmp_path / "a.conllu", word(1, "it", "ner=O") + word(2, "Ada", first) + word(3, "King", second))
    [fault] = faults_of(path)
    assert fault.startswith("2: no word has an entity in NER=; ")
    assert looks in fault
    with pytest.raises(InputError, match=r"a\.conllu:2: no word has an entity in NER="):
        read_gold(path)


def test_spaces_around_a_key_of_misc_hide_no_label(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conllu", word(1, "Ada", "SpaceAfter=No | NER=B-PER") + word(2, "King", "NER = I-PER"))
    assert read_gold(path)[0][0].labels == ("B-PER", "I-PER")


def test_conllu_labels_in_a_column_of_tags_are_a_fault(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conllu", word(1, "Ada", "_", xpos="B-PER") + word(2, "ran", "_", xpos="O"))
    assert faults_of(path) == ["1: no word has an entity in NER=; xpos looks like labels: write them there"]


def test_conllu_labels_under_two_keys_are_a_fault_unless_one_is_chosen(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conllu", word(1, "Ada", "NER=B-PER") + "\n" + word(1, "Oslo", "name=B-LOC"))
    assert faults_of(path) == [
        "3: name= looks like labels, as does NER=: write all in one place, or choose by --label-column"
    ]
    assert faults_of(path, label_column="NER") == faults_of(path, label_column="name") == []
    assert "no word has an entity in nmae=; NER= and name= look like" in faults_of(path, label_column="nmae")[0]


@pytest.mark.parametrize(
    "misc",
    [
        # A second layer of labels, of which one is meant.
        ("NER=B-PER|ner=B-PER", "ner=B-LOC"),
        ("NER=B-PER|Entity=(1", "Entity=1)"),
        ("NER=B-PER", "Gloss=E-mail"),
        ("NER=B-PER", "OTH=B-PRODUCT"),
        ("Gloss=E-mail", "Gloss=mail"),
        ("SpaceAfter=No|start_char=0", "Translit=B"),
        ("_", "ner=O"),
    ],
)
def test_conllu_without_labels_elsewhere_has_no_fault(tmp_path: Path, misc: tuple[str, str]) -> None:
    gloss = word(1, "a", misc[0]) + word(2, "b", misc[1]) + word(3, "c", "Gloss=x")
    assert faults_of(write(tmp_path / "a.conllu", gloss)) == []


def test_token_labels_of_any_form_are_no_stray_entities(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conllu", word(1, "Ada", "ner=B-PER", upos="PROPN"))
    assert faults_of(path, label_column="upos", label_scheme="TOKENS") == []


@pytest.mark.parametrize(("name", "after"), [("1-2", "O"), ("1-2", "B-PER"), ("1.1", "O")])
def test_label_of_what_is_no_word_is_a_fault(tmp_path: Path, name: str, after: str) -> None:
    rows = word(1, "a", f"NER={after}") + word(2, "el", "_") + word(3, "mar", "_")
    empty = rows.split("\n", 1)[0] + "\n" + word(name, "x", "NER=B-LOC") + rows.split("\n", 1)[1]
    text = word(name, "al", "NER=B-LOC") + rows if "-" in name else empty
    [fault] = faults_of(write(tmp_path / "a.conllu", text))
    assert f"{name} has the label B-LOC, which would be lost: write it at a word" in fault


def test_label_of_a_range_that_its_words_have_too_is_no_fault(tmp_path: Path) -> None:
    rows = word("1-2", "al", "NER=B-LOC") + word(1, "a", "NER=B-LOC") + word(2, "el", "NER=I-LOC")
    path = write(tmp_path / "a.conllu", rows + word("3-4", "del", "NER=O") + word(3, "de", "_") + word(4, "el", "_"))
    assert faults_of(path) == []
    assert read_gold(path)[0][0].labels == ("B-LOC", "I-LOC", "O", "O")


def test_conll_labels_in_another_column_are_a_fault(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", "Ada B-PER NNP O\nran O VBD O\n")
    assert faults_of(path) == [
        "1: no word has an entity in the last column; column 2 looks like labels: --label-column 2 "
        "(train: --set data.label_column=2)"
    ]
    assert faults_of(path, label_column=2) == []
    chunks = write(tmp_path / "b.conll", "She PRP B-NP O\nran VBD B-VP O\n")
    assert faults_of(chunks) == []


@pytest.mark.parametrize("end", ["\r\r\n", "\r\r\r\n", "\n\r", "\r\n", "\r"])
@pytest.mark.parametrize("name", ["a.conll", "a.conllu"])
def test_doubled_line_ends_do_not_cut_sentences(tmp_path: Path, name: str, end: str) -> None:
    columns = "Ada\tB-PER\nKing\tI-PER\n\nyes\tO\n"
    text = columns if name == "a.conll" else CONLLU
    expected = read_gold(write(tmp_path / f"plain-{name}", text))
    (tmp_path / name).write_bytes(text.replace("\n", end).encode())
    assert read_gold(tmp_path / name) == expected


WORDS = st.sampled_from(["Ada", "#", "1", "naïve", "a\u2028b", "no\u00a0way", "_", "NER=B-PER", "-", "\u00e9"])


@st.composite
def sentences(draw: st.DrawFn) -> Sentence:
    words = tuple(draw(st.lists(WORDS, min_size=1, max_size=4)))
    labels = draw(st.sampled_from([("O",), ("B-PER",), ("B-PER", "I-PER", "O", "B-LOC")]))
    labels = (labels + ("O",) * len(words))[: len(words)]
    if draw(st.booleans()):
        return Sentence(words=words, labels=labels)
    heads = (0, *range(1, len(words)))
    return Sentence(
        words=words, labels=labels, tags=("NOUN",) * len(words), heads=heads, relations=("dep",) * len(words)
    )


@st.composite
def corpora(draw: st.DrawFn) -> list[GoldDocument]:
    """Draw sentences outside of documents, which come first in a file, then documents with and without a name."""
    alone = draw(st.lists(sentences(), max_size=2))
    documents = draw(st.lists(st.tuples(st.sampled_from(["", "x 1"]), st.lists(sentences(), min_size=1, max_size=2))))
    return [
        *(GoldDocument(name=None, sentences=(sentence,), lines=()) for sentence in alone),
        *(GoldDocument(name=name, sentences=tuple(found), lines=()) for name, found in documents),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "suffix"), [("conll", ".gz"), ("conllu", ""), ("conllu", ".zst")])
@given(corpus=corpora())
def test_written_corpus_is_read_back_unchanged(
    tmp_path: Path, form: GoldForm, suffix: str, corpus: list[GoldDocument]
) -> None:
    path = tmp_path / f"a.{form}{suffix}"
    write_gold(path, corpus, form=form)
    found = read_corpus(path).documents
    assert [document.name for document in found] == [document.name for document in corpus]
    for one, other in zip(found, corpus, strict=True):
        if form == "conllu":
            assert one.sentences == other.sentences
        else:
            plain = [(sentence.words, sentence.labels) for sentence in other.sentences]
            assert [(sentence.words, sentence.labels) for sentence in one.sentences] == plain


@pytest.mark.parametrize("column", ["upos", "xpos", "Sense"])
def test_token_labels_are_written_to_their_column(tmp_path: Path, column: str) -> None:
    sentence = Sentence(words=("She", "ran"), labels=("PRP", "O"))
    documents = [GoldDocument(name="x", sentences=(sentence,), lines=())]
    write_gold(tmp_path / "a.conllu", documents, form="conllu", label_column=column)
    form = GoldFormat(label_column=column, label_scheme="TOKENS")
    assert read_corpus(tmp_path / "a.conllu", form).documents[0].sentences == (sentence,)


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.conll"
    path.write_text("old\tO\n")
    monkeypatch.setattr(atomic_writes, "stage_file", fail)
    with pytest.raises(StoreError, match="No space left"):
        write_gold(path, [], form="conll")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old\tO\n"]
