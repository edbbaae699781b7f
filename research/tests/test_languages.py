"""What the trainings of several languages read: contractions, targets of corpora that lack types, and runs of text."""

import random
from pathlib import Path

import pytest
import torch

from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from research.entities_multi import corpora
from research.entities_multi.reach import Reach, choose
from research.parser_en import raw_text
from research.parser_multi import texts

VOCABULARY = Vocabulary.from_sentences([], entity_types={"PER", "LOC", "ORG", "DATE"})
CONLLU = """# newdoc id = a
# text = Don't go.
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\t_\t_\t_\t_\t_\t_\t_\t_
2\tn't\t_\t_\t_\t_\t_\t_\t_\t_
3\tgo\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
4\t.\t_\t_\t_\t_\t_\t_\t_\t_

# text = Gehen wir zum Markt
1\tGehen\t_\t_\t_\t_\t_\t_\t_\t_
2\twir\t_\t_\t_\t_\t_\t_\t_\t_
3-4\tzum\t_\t_\t_\t_\t_\t_\t_\t_
3\tzu\t_\t_\t_\t_\t_\t_\t_\t_
4\tdem\t_\t_\t_\t_\t_\t_\t_\t_
5\tMarkt\t_\t_\t_\t_\t_\t_\t_\t_

"""


@pytest.mark.parametrize(
    ("first", "second", "written"),
    [("de", "o", "do"), ("Em", "as", "Nas"), ("a", "a", "à"), ("por", "os", "pelos"), ("de", "Porto", None)],
)
def test_contractions_are_as_portuguese_writes_them(first: str, second: str, written: str | None) -> None:
    assert texts.contraction(first, second) == written


def test_a_name_does_not_begin_within_a_contraction() -> None:
    sentence = Sentence(
        words=("Universidade", "de", "o", "Porto", "em", "O", "Globo"),
        labels=("B-ORG", "I-ORG", "I-ORG", "I-ORG", "O", "B-ORG", "I-ORG"),
    )
    found = corpora._contracted(sentence)
    assert found.words == ("Universidade", "do", "Porto", "em", "O", "Globo")
    assert found.labels == ("B-ORG", "I-ORG", "I-ORG", "O", "B-ORG", "I-ORG")


def test_multi_word_tokens_that_spell_their_words_are_split_and_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "train.conllu"
    path.write_text(CONLLU, encoding="utf-8")
    [paragraph] = raw_text.read_paragraphs(path, split=True)
    assert [[token.text for token in sentence] for sentence in paragraph] == [
        ["Do", "n't", "go", "."],
        ["Gehen", "wir", "zum", "Markt"],
    ]
    assert [token.words for token in paragraph[1]] == [1, 1, 2, 1]
    runs = [raw_text.labelled(run)[0] for run in texts.runs(path, random.Random(2))]
    assert " ".join(" ".join(runs).split()) == "Don't go. Gehen wir zum Markt"


def test_a_word_outside_of_names_may_be_of_any_type_that_its_corpus_lacks() -> None:
    sentence = Sentence(words=("Ada", "laughed"), labels=("B-PER", "O"))
    in_english, in_danish = (corpora.gold_rows([sentence], VOCABULARY, lacks=lacks) for lacks in ([], ["DATE"]))
    assert _names(in_danish) == [{"S-PER"}, {"O", "B-DATE", "I-DATE", "E-DATE", "S-DATE"}]
    assert _names(in_english) == [{"S-PER"}, {"O"}]


def test_a_name_of_another_type_teaches_what_teachers_say() -> None:
    sentence = corpora.with_gold_types(Sentence(words=("Ada", "of", "Volvo"), labels=("B-PER", "O", "B-PROD")))
    assert (sentence.labels, sentence.known) == (("B-PER", "O", "O"), (True, True, False))
    silver = torch.zeros(3, len(VOCABULARY.labels))
    numbers = {label: number for number, label in enumerate(VOCABULARY.labels)}
    silver[:, numbers["S-ORG"]], silver[:, numbers["O"]], silver[:, numbers["S-DATE"]] = 0.6, 0.3, 0.1
    taught = corpora.gold_and_silver([sentence], silver, VOCABULARY, gold=0.5)
    assert taught.sum(dim=1).tolist() == pytest.approx([1, 1, 1], abs=2e-3)
    wanted = [{"S-PER": 0.5, "S-ORG": 0.3}, {"O": 0.525, "S-DATE": 0.175, "S-ORG": 0.3}, {"S-ORG": 0.6, "O": 0.3}]
    for row, labels in zip(taught, wanted, strict=True):
        assert {label: float(row[numbers[label]]) for label in labels} == pytest.approx(labels, abs=2e-3)


def test_norwegian_is_trained_on_and_scored_on_other_parts_of_its_treebanks(tmp_path: Path) -> None:
    lines = [
        f"1\tOslo{n}\t_\t_\t_\t_\t_\t_\t_\tname=B-GPE_LOC\n2\tFiat\t_\t_\t_\t_\t_\t_\t_\tname=B-PROD\n"
        for n in range(10)
    ]
    for form in ("bokmaal", "nynorsk"):
        (tmp_path / f"no_{form}_norne.dev.conllu").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for part in ("train", "dev"):
        corpora.write_language("no", part, tmp_path, tmp_path, tmp_path)
    train, dev = (corpora._read(tmp_path / "corpora/no" / f"{part}.conll", 256) for part in ("train", "dev"))
    assert [len(train), len(dev)] == [18, 2]
    assert train[0] == [Sentence(words=("Oslo0", "Fiat"), labels=("B-LOC", "O"), known=(True, False))]
    assert dev[0] == [Sentence(words=("Oslo9", "Fiat"), labels=("B-LOC", "O"))]


def test_the_reach_is_the_best_that_is_below_the_drafts_on_no_part() -> None:
    drafts = {"a": 50.0, "b": 60.0}
    measured = [
        Reach(0.0, 10, 0.2, {"a": 70.0, "b": 59.0}, drafts),
        Reach(0.4, 10, 0.5, {"a": 52.0, "b": 60.0}, drafts),
        Reach(0.0, 0, 0.5, {"a": 51.0, "b": 60.0}, drafts),
        Reach(0.0, 10, 3.8, drafts, drafts),
    ]
    assert choose(measured) is measured[1]
    assert choose([measured[0], measured[3]]) is measured[3]
    assert choose(measured, tolerance=1.0) is measured[0]


def _names(rows: torch.Tensor) -> list[set[str]]:
    return [{VOCABULARY.labels[number] for number in row.nonzero()[:, 0].tolist()} for row in rows]
