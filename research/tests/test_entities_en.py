"""The trainings behind the bundled taggers of names."""

import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from concord_testing.encoders import write_encoder
from torch import nn

from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.labels import Span
from concord.models.words.encoder_config import EncoderConfig
from research.entities_en.features import Features, encoder_states
from research.entities_en.learning import equal_lengths, f1, learn, like_lengths, repeated, score, span_counts
from research.entities_en.prepare import with_per_cent
from research.entities_en.prepared import Prepared
from research.entities_en.silver import add_silver, find_certain, is_plausible, mend
from research.entities_en.teachers import FrozenTeacher, predict, train

pytestmark = pytest.mark.slow

SENTENCES = [
    Sentence(words=("Anna", "met", "Bob", "."), labels=("B-PER", "O", "B-PER", "O")),
    Sentence(words=("Geneva", "slept", "."), labels=("B-LOC", "O", "O")),
    Sentence(words=("Bob", "saw", "Geneva", "."), labels=("B-PER", "O", "B-LOC", "O")),
]


def test_batches_of_one_length_hold_every_sentence_once() -> None:
    batches = equal_lengths(SENTENCES * 5, words=9, draw=random.Random(1))
    assert all(len({len(sentence.words) for sentence in batch}) == 1 for batch in batches)
    assert all(sum(len(sentence.words) for sentence in batch) <= 9 for batch in batches)
    assert Counter(id(sentence) for batch in batches for sentence in batch) == Counter(map(id, SENTENCES * 5))


def test_batches_of_like_lengths_hold_every_sentence_once() -> None:
    found = [sentence for batch in like_lengths(SENTENCES * 40, random.Random(1)) for sentence in batch]
    assert Counter(map(id, found)) == Counter(map(id, SENTENCES * 40))


def test_silver_names_stand_beside_gold_ones_where_they_are_plausible() -> None:
    words = ("Anna", "paid", "$", "5", "on", "May", "Street", "in", "1999", ",", "the", "very", "best")
    sentence = Sentence(words=words, labels=("B-PER", *"OOOO", "B-LOC", "I-LOC", *"OOOOOO"))
    dropped: Counter[str] = Counter()
    predicted = ("O", "O", "B-MONEY", "I-MONEY", "O", "B-DATE", "O", "O", "B-DATE", "O", "O", "O", "B-PERCENT")
    found = add_silver(sentence, predicted, dropped).labels or ()
    assert found == ("B-PER", "O", "B-MONEY", "I-MONEY", "O", "B-LOC", "I-LOC", "O", "B-DATE", *"OOOO")
    assert dropped == {"PERCENT": 1}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from $ 25 million to - $ 3.5", {"$ 25 million": "MONEY", "$ 3.5": "MONEY"}),
        ("it is : - $3 billion", {"- $3 billion": "MONEY"}),
        ("12.4 to 3.2 percent , or 5%", {"12.4 to 3.2 percent": "PERCENT", "5%": "PERCENT"}),
        ("4 per cent of 8.5 billion kWh", {"4 per cent": "PERCENT"}),
        ("Roman Catholic 47 % , Americans", {"Roman Catholic": "NORP", "47 %": "PERCENT", "Americans": "NORP"}),
        ("the American Red Cross speaks French", {}),
    ],
)
def test_rules_find_amounts_shares_and_peoples(text: str, found: dict[str, str]) -> None:
    words = text.split()
    assert {" ".join(words[span.start : span.end]): span.label for span in find_certain(words)} == found


def test_money_without_a_currency_is_a_number_or_nothing() -> None:
    words = ["three", "million", "and", "8.5", "billion", "kWh"]
    spans, dropped = mend(words, [Span(0, 2, "MONEY"), Span(3, 6, "MONEY")])
    assert (spans, dropped) == ([Span(0, 2, "CARDINAL")], {"MONEY": 2})


@pytest.mark.parametrize(
    ("text", "kind", "plausible"),
    [
        ("$ 3 million", "MONEY", True),
        ("3 million", "MONEY", False),
        ("twenty - two", "CARDINAL", True),
        ("several", "CARDINAL", False),
        ("05-51226", "CARDINAL", False),
        ("1939-45", "CARDINAL", True),
        ("fifty-ninth", "DATE", False),
        ("the 21st", "ORDINAL", True),
        ("5 per cent", "PERCENT", True),
        ("half", "PERCENT", False),
        ("last week", "DATE", True),
        ("the best", "DATE", False),
        ("this morning", "TIME", True),
        ("British", "NORP", True),
        ("people", "NORP", False),
    ],
)
def test_a_silver_name_must_hold_what_its_type_must_hold(text: str, kind: str, plausible: bool) -> None:
    assert is_plausible(text.split(), kind) is plausible


def test_every_second_percent_is_per_cent() -> None:
    gold = Sentence(words=("5", "percent", "of", "Geneva"), labels=("O", "O", "O", "B-LOC"))
    name = Sentence(words=("The", "%", "Band"), labels=("B-ORG", "I-ORG", "I-ORG"))
    ((first, second), (third, fourth)) = with_per_cent([[gold, gold], [name, Sentence(words=("6", "%"))]])
    assert (first, third) == (gold, name)
    assert (second.words, second.labels) == (("5", "per", "cent", "of", "Geneva"), ("O", "O", "O", "O", "B-LOC"))
    assert with_per_cent([[Sentence(words=("6", "%")), Sentence(words=("6", "%"))]])[0][1].words == ("6", "per", "cent")
    assert fourth.words == ("6", "%")


def test_what_is_prepared_is_read_as_it_was(tmp_path: Path) -> None:
    texts = [[Sentence(words=("Some", "text"))]]
    seen = {"train": torch.zeros(7), "dev": torch.zeros(4), "texts": torch.ones(2)}
    Prepared(train={"a": [SENTENCES[:2]]}, dev={"a": [SENTENCES[2:]]}, texts=texts, seen=seen, labels=3).save(tmp_path)
    found = Prepared.read(tmp_path)
    assert (found.train, found.dev, found.texts) == ({"a": [SENTENCES[:2]]}, {"a": [SENTENCES[2:]]}, texts)
    assert found.sentences("train") == SENTENCES[:2]
    assert found.seen["texts"].tolist() == [1, 1]


def test_names_are_counted_by_type_and_document() -> None:
    labels: list[list[tuple[str, ...]]] = [[("B-PER", "O", "B-LOC", "O")], [("B-LOC", "O", "B-DATE")]]
    counts = span_counts(labels, [SENTENCES[:1], SENTENCES[1:2]], ("LOC", "PER"))
    assert {kind: rows.tolist() for kind, rows in counts.items()} == {
        "LOC": [[0, 1, 0], [1, 1, 1]],
        "PER": [[2, 1, 1], [0, 0, 0]],
    }
    assert f1(torch.stack(list(counts.values()))) == pytest.approx(200 * 2 / 6)


def test_a_corpus_is_read_as_often_as_its_weight_says() -> None:
    corpora = {"twice": [SENTENCES[:1]], "half": [SENTENCES[1:]]}
    assert repeated(corpora, {"twice": 2.0, "half": 0.5}).count(SENTENCES[0]) == 2
    assert len(repeated(corpora, {"twice": 2.0, "half": 0.5})) == 3


def test_features_must_be_those_of_the_sentences() -> None:
    features = Features(SENTENCES, torch.arange(11)[:, None].float())
    assert features.of(SENTENCES[1])[:, 0].tolist() == [4, 5, 6]
    assert features.batch(SENTENCES[:2])[1, 3, 0] == 0
    with pytest.raises(ValueError, match="11 words, got 10"):
        Features(SENTENCES, torch.zeros(10, 1))


def test_every_word_has_an_encoder_state_whatever_is_read_beside_it(tmp_path: Path) -> None:
    write_encoder(tmp_path, {word.lower() for sentence in SENTENCES for word in sentence.words})
    config = EncoderConfig(source=str(tmp_path), sha256=None, last_layers=1)
    together = Features(SENTENCES, encoder_states([sentence.words for sentence in SENTENCES], "cpu", config))
    for sentence in SENTENCES:
        torch.testing.assert_close(
            together.of(sentence), encoder_states([sentence.words], "cpu", config), atol=0.02, rtol=0
        )


def test_a_teacher_learns_its_sentences() -> None:
    torch.manual_seed(1)
    vocabulary = Vocabulary.from_sentences(SENTENCES, lowercase=True)
    gold = [
        vocabulary.labels.index(label)
        for sentence in SENTENCES
        for label in vocabulary.scheme.from_gold(sentence.labels or ())
    ]
    targets = Features(SENTENCES, nn.functional.one_hot(torch.tensor(gold), len(vocabulary.labels)))
    features = Features(SENTENCES, torch.randn(len(gold), 6))
    teacher = FrozenTeacher(vocabulary, 6, hidden=64)
    train(teacher, SENTENCES * 8, targets, features, epochs=60, seed=1, name="teacher")
    probabilities = predict(teacher, SENTENCES, features)
    assert score(probabilities.float(), {"all": [SENTENCES]}, vocabulary) == {"all": 100.0, "mean": 100.0}


def test_a_training_that_was_interrupted_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("research.entities_en.learning._SAVE_SECONDS", 0)

    def trained(state: Path | None, stop: int | None = None) -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        network, seen = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), 0

        def loss_of(batch: float) -> torch.Tensor:
            nonlocal seen
            seen += 1
            if seen == stop:
                raise InterruptedError
            loss: torch.Tensor = network(torch.tensor([batch, 1.0])).square().sum()
            return loss

        groups = [{"params": list(network.parameters()), "lr": 0.1}]
        learn(network, groups, [[1.0, 2.0, 3.0], [4.0, 5.0]], loss_of, name="test", state=state)
        return network.state_dict()

    whole = trained(None)
    for stop in (2, 3, 2):
        with pytest.raises(InterruptedError):
            trained(tmp_path / "state", stop)
    for name, value in trained(tmp_path / "state").items():
        torch.testing.assert_close(value, whole[name], rtol=0, atol=0)
