"""CoNLL-2012, with bracketed entities; faults are reported with file and line."""

from pathlib import Path

import pytest

from concord.models.data.sentence import Sentence
from concord.pipeline.corpora.corpus_format import Fault, GoldFormat
from concord.pipeline.corpora.gold_corpus import read_corpus, read_gold
from concord.pipeline.errors import InputError

ONTONOTES = """\
#begin document (wb/shop/00/shop_0000); part 000
wb/shop/00/shop_0000   0   0     Ada    NNP  (TOP(S(NP*   -   -   -   -   (PERSON*   (ARG0*   (7
wb/shop/00/shop_0000   0   1    King    NNP           *)  -   -   -   -          *)       *)   7)
wb/shop/00/shop_0000   0   2   -LRB-  -LRB-           *   -   -   -   -          *        *    -
wb/shop/00/shop_0000   0   3    Oslo    NNP           *   -   -   -   -       (GPE)       *    -
wb/shop/00/shop_0000   0   4   -RRB-  -RRB-           *)) -   -   -   -          *        *    -

wb/shop/00/shop_0000   0   0    Rain     NN           *   -   -   -   -          *        -

#end document
#begin document (wb/shop/00/shop_0000); part 001
wb/shop/00/shop_0000   1   0     Yes     UH           *   -   -   -   -          *        -

#end document
"""

FORMAT = GoldFormat(format="conll2012")


def sentence(cells: list[str]) -> str:
    """Return a sentence with these cells in the entity column."""
    row = "wb/x 0 {} w NN * - - - - {} -\n"
    return "".join(row.format(number, cell) for number, cell in enumerate(cells))


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_ontonotes_has_documents_words_and_entities(tmp_path: Path) -> None:
    path = write(tmp_path / "shop_0000.v4_gold_conll", ONTONOTES)
    assert read_gold(path) == [
        [
            Sentence(
                words=("Ada", "King", "(", "Oslo", ")"),
                labels=("B-PERSON", "I-PERSON", "O", "B-GPE", "O"),
                tags=("NNP", "NNP", "-LRB-", "NNP", "-RRB-"),
            ),
            Sentence(words=("Rain",), labels=("O",), tags=("NN",)),
        ],
        [Sentence(words=("Yes",), labels=("O",), tags=("UH",))],
    ]
    names = [document.name for document in read_corpus(path).documents]
    assert names == ["(wb/shop/00/shop_0000); part 000", "(wb/shop/00/shop_0000); part 001"]


def test_ontonotes_parts_of_speech_are_read_as_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", ONTONOTES)
    form = GoldFormat(format="conll2012", label_column="xpos", label_scheme="TOKENS")
    ((sentence, _), _) = read_gold(path, form)
    assert (sentence.labels, sentence.tags) == (("NNP", "NNP", "-LRB-", "NNP", "-RRB-"), None)


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (["(org", "_", "org)"], ("B-org", "I-org", "I-org")),
        (["(org)", "(org*", "*)"], ("B-org", "B-org", "I-org")),
        (["(org", "org)", "(org)"], ("B-org", "I-org", "B-org")),
    ],
)
def test_brackets_are_read(tmp_path: Path, cells: list[str], labels: tuple[str, ...]) -> None:
    assert read_gold(write(tmp_path / "a.txt", sentence(cells)), FORMAT)[0][0].labels == labels


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["*", "*)", "_"], r":2: '\*\)' closes an entity that this sentence has not opened"),
        (["_", "(org", "_"], r":2: the org that starts here is not closed in its sentence"),
        (["(org", "(per)", "org)"], r":2: '\(per\)' opens an entity within another, the org of word 1"),
        (["(org", "per)", "_"], r":2: 'per\)' closes another entity than the one that is open, of type org"),
        (["(org", "org)|(per)", "_"], r":2: .* opens an entity at the last word of another"),
        (["(org)|(per", "per)", "_"], r":1: .* opens an entity at the last word of another"),
        (["_", "org", "_"], r":2: expected an entity such as \(PERSON\*, \*\) or \(PERSON\), got 'org'"),
    ],
)
def test_invalid_brackets_are_reported_with_their_line(tmp_path: Path, cells: list[str], message: str) -> None:
    path = write(tmp_path / "a.txt", sentence(cells))
    with pytest.raises(InputError, match=rf"a\.txt{message}"):
        read_gold(path, FORMAT)
    faults: list[Fault] = []
    assert read_corpus(path, FORMAT, faults.append).documents == ()
    assert all(fault.repaired is None for fault in faults)


def test_line_with_too_few_columns_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "a_gold_conll", ONTONOTES.replace("   -   -   -   -       (GPE)       *    -", ""))
    with pytest.raises(InputError, match=r"a_gold_conll:5: expected a word in column 4 and 11 columns or more, got 6"):
        read_gold(path)
