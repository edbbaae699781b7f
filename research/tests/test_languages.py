"""What the trainings of several languages read: contractions, targets of corpora that lack types, and runs of text."""

import random
from pathlib import Path

import pytest

from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from research import entities_multi, parser_multi
from research.parser_en import raw_text
from research.parser_multi import texts

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
    assert parser_multi.contraction(first, second) == written


def test_a_name_does_not_begin_within_a_contraction() -> None:
    sentence = Sentence(
        words=("Universidade", "de", "o", "Porto", "em", "O", "Globo"),
        labels=("B-ORG", "I-ORG", "I-ORG", "I-ORG", "O", "B-ORG", "I-ORG"),
    )
    found = entities_multi._contracted(sentence)
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
    vocabulary = Vocabulary.from_sentences([sentence], entity_types={"PER", "LOC", "ORG", "DATE"})
    in_english, in_danish = (
        entities_multi._gold_targets(name, [sentence], vocabulary).bool() for name in ("ewt_uner", "da")
    )
    allowed = [[vocabulary.labels[n] for n in row.nonzero()[:, 0].tolist()] for row in in_danish]
    assert allowed[0] == ["S-PER"]
    assert set(allowed[1]) == {"O", "B-DATE", "I-DATE", "E-DATE", "S-DATE"}
    assert in_english.sum(dim=1).tolist() == [1, 1]
