"""The document memory."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from concord.models.bundles.registry import build_tagger
from concord.models.data.batch import word_rows
from concord.models.data.outputs import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.labels import BIO
from concord.models.layers.lstm import SampledLayer
from concord.models.taggers.token_table import TokenTable
from concord.models.taggers.two_stage_networks import (
    DocumentMemory,
    MemoryConfig,
    MemoryContents,
    MemoryReader,
    RefineNetwork,
    TwoStageConfig,
    number_words,
    occurrence_index,
)
from concord.models.training.fit_calibration import REFINE_ALL
from concord.models.words.representation import WordRepresentation

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
Document = list[Sentence]
Key = Literal["lower", "exact"]
WORDS = st.sampled_from(["Ford", "ford", "FORD", "1984", "1985", "the", ".", "\u00c9mile", "\u00e9mile"])


def naive_index(documents: list[list[str]], key: Key, slots: int) -> list[list[int]]:
    """List the other occurrences of each word by comparing all pairs."""

    def same(left: str, right: str) -> bool:
        if key == "exact":
            return left == right
        digits = str.maketrans("123456789", "000000000")
        return left.translate(digits).lower() == right.translate(digits).lower()

    rows, first = [], 0
    for words in documents:
        for place, word in enumerate(words):
            others = [first + other for other, found in enumerate(words) if other != place and same(word, found)]
            rows.append((others + [-1] * slots)[:slots])
        first += len(words)
    return rows


@given(
    documents=st.lists(st.lists(WORDS, max_size=14), max_size=4),
    key=st.sampled_from(["lower", "exact"]),
    slots=st.integers(1, 5),
)
def test_index_lists_the_first_other_occurrences_in_document_order(
    documents: list[list[str]], key: Key, slots: int
) -> None:
    index = occurrence_index(number_words(documents, key), slots=slots)
    assert index.tolist() == naive_index(documents, key, slots)


@pytest.fixture
def reader() -> MemoryReader:
    torch.manual_seed(2)
    return MemoryReader(MemoryConfig(dropout=0.0), width=4, hidden=6).double().eval()


@torch.no_grad()
def test_reader_sums_contexts_and_labels_with_the_same_weights(reader: MemoryReader) -> None:
    states, hidden, labels = (torch.randn(*shape).double() for shape in ((1, 3, 4), (5, 6), (5, 4)))
    slots = torch.tensor([[[0, 3, -1], [2, -1, -1], [-1, -1, -1]]])
    context, label = reader(states, MemoryContents.of(hidden, labels, slots), labels)
    for word, present in enumerate([[0, 3], [2]]):
        keys, values = reader.key(hidden[present]), reader.value(labels[present])
        weights = (keys @ reader.query(states[0, word]) / 2.0).softmax(0)
        assert torch.allclose(context[0, word], weights @ keys)
        assert torch.allclose(label[0, word], weights @ values)
    assert torch.equal(context[0, 2], reader.default_context)
    assert torch.equal(label[0, 2], reader.default_label)


def test_reader_returns_the_learned_defaults_for_an_empty_memory(reader: MemoryReader) -> None:
    hidden, labels = torch.zeros(0, 6, dtype=torch.float64), torch.zeros(0, 4, dtype=torch.float64)
    states = torch.randn(2, 3, 4, dtype=torch.float64)
    context, label = reader(states, MemoryContents.of(hidden, labels, torch.full((2, 3, 10), -1)), labels)
    assert torch.equal(context, reader.default_context.expand_as(states))
    (context.sum() + label.sum()).backward()
    assert reader.default_context.grad is not None
    assert reader.default_label.grad is not None


def test_default_vectors_affect_only_words_that_occur_once(build: Callable[..., Any]) -> None:
    tagger = build("doc_uanet")
    # One word a sentence: words of a sentence meet in the attention that follows the memory.
    document = [Sentence(words=(word,)) for word in ("Ford", "Paris", "ford", "Ada")]
    before = tagger.tabulate([document], PredictOptions(threshold=-1.0)).probability
    with torch.no_grad():
        tagger.refine_network.reader.default_label.add_(3.0)
    changed = tagger.tabulate([document], PredictOptions(threshold=-1.0)).probability != before
    assert changed.tolist() == [False, True, False, True]


def test_a_word_reads_the_output_of_stage_one_at_its_other_occurrence(build: Callable[..., Any]) -> None:
    tagger = build("doc_uanet")

    def probability(neighbour: str) -> float:
        document = [Sentence(words=("Ford",)), Sentence(words=("Ford", neighbour))]
        return float(tagger.tabulate([document], PredictOptions(threshold=-1.0)).probability[0])

    assert probability("Paris") != probability("Ada")
    other = [[Sentence(words=("Ford",))], [Sentence(words=("Ford", "Paris"))]]
    alone = [[Sentence(words=("Ford",))], [Sentence(words=("Ford", "Ada"))]]
    results = [
        tagger.tabulate(documents, PredictOptions(threshold=-1.0)).probability[0].item() for documents in (other, alone)
    ]
    assert results[0] == results[1]


def test_configured_key_decides_which_words_are_the_same(build: Callable[..., Any]) -> None:
    document = [Sentence(words=("Ford",)), Sentence(words=("ford", "Paris"))]
    changed = [Sentence(words=("Ford",)), Sentence(words=("ford", "Ada"))]
    for key, reads in (("lower", True), ("exact", False)):
        tagger = build("doc_uanet", memory={"key": key})
        results = [
            tagger.tabulate([words], PredictOptions(threshold=-1.0)).probability[0].item()
            for words in (document, changed)
        ]
        assert (results[0] != results[1]) == reads


def without_slots(config: TwoStageConfig) -> TwoStageConfig:
    assert config.document_memory is not None
    return config.model_copy(update={"memory": config.document_memory.model_copy(update={"slots": 0})})


def test_sentences_are_independent_without_slots(build: Callable[..., Any], documents: list[Document]) -> None:
    tagger = build("doc_uanet", threshold=REFINE_ALL)
    before = tagger.tabulate(documents)
    config = tagger.config
    tagger.config = without_slots(config)
    apart = [[sentence] for document in documents for sentence in document]
    assert torch.allclose(tagger.tabulate(documents).probability, tagger.tabulate(apart).probability, atol=1e-6)
    assert not torch.allclose(tagger.tabulate(documents).probability, before.probability, atol=1e-6)
    assert torch.isfinite(tagger.loss(tagger.encode(documents[0], documents=[0] * len(documents[0]))))
    tagger.config = config
    assert torch.equal(tagger.tabulate(documents).probability, before.probability)


def test_memory_returns_what_was_written_for_the_words_that_are_read() -> None:
    groups = number_words([["a", "b", "A"], ["a", "c", "c"]], "lower")
    memory = DocumentMemory(groups, slots=10, hidden=2, labels=1, device=CPU)
    hidden = torch.arange(12.0).view(6, 2)
    for rows in (torch.tensor([5, 0, 1]), torch.tensor([2, 3, 4])):
        memory.write(rows, rows, hidden[None], hidden[None, :, :1])
    contents = memory.read(torch.tensor([[2, 1], [4, -1]]))
    assert contents.cells.tolist() == [0, 2]
    assert contents.slots[:, 0].tolist() == [0, 1]
    assert int((contents.slots >= 0).sum()) == 2
    assert contents.hidden.tolist() == hidden[[0, 5]].tolist()
    assert contents.probabilities.tolist() == hidden[[0, 5], :1].tolist()


def test_word_rows_count_from_the_first_word_and_mark_padding() -> None:
    assert word_rows(torch.tensor([4, 0]), torch.tensor([1, 3])).tolist() == [[4, -1, -1], [0, 1, 2]]


NAMES = tuple(f"name-{letter}" for letter in "abcdefgh")
CUES = {"PER": ("mister", "laughed"), "LOC": ("city", "grew")}


@dataclass(frozen=True)
class Outcome:
    """The results of a trained tagger on new documents: its table, the gold labels, and the kinds of words."""

    table: TokenTable
    gold: torch.Tensor
    ambiguous: torch.Tensor
    cue: torch.Tensor

    def draft_accuracy(self) -> float:
        return float((self.table.draft == self.gold)[self.ambiguous].float().mean())

    def accuracy(self) -> float:
        return float((self.table.label == self.gold)[self.ambiguous].float().mean())


def draw_document(chance: random.Random) -> list[Sentence]:
    """Draw a document: a cue sentence and two ambiguous ones for each of two names, and one without a name."""
    sentences = [Sentence(words=("it", "rained", "all", "day"), labels=("O",) * 4)]
    for name in chance.sample(NAMES, 2):
        kind = chance.choice(sorted(CUES))
        before, after = CUES[kind]
        labels = ("O", "O", f"B-{kind}", "O")
        sentences.append(Sentence(words=("the", before, name, after), labels=labels))
        for _ in range(2):
            sentences.append(Sentence(words=("we", "saw", name, chance.choice(("again", "today"))), labels=labels))
    chance.shuffle(sentences)
    return sentences


def train_tagger(label_stream: str, *, steps: int, seed: int) -> Any:
    """Train a Doc-UANet on documents of which no two are the same."""
    torch.manual_seed(seed)
    chance = random.Random(seed)
    drawn = [sentence for _ in range(50) for sentence in draw_document(chance)]
    representation = {"word_dimension": 24, "characters": None, "dropout": 0.1}
    config = {
        "scheme": "BIO",
        "draft_representation": representation,
        "refine_representation": representation,
        "lstm": {"hidden": 16, "input_dropout": 0.05, "recurrent_dropout": 0.05, "output_dropout": 0.05},
        "samples": 4,
        "label_dimension": 16,
        "two_stream": {"heads": 2, "head_dimension": 12, "layers": 2, "dropout": 0.0, "attention_dropout": 0.0},
        "label_stream": label_stream,
    }
    tagger = build_tagger("doc_uanet", config, Vocabulary.from_sentences(drawn, scheme=BIO)).train()
    optimizer = torch.optim.Adam(tagger.parameters(), lr=1e-2)
    for _ in range(steps):
        documents = [draw_document(chance) for _ in range(8)]
        owners = [number for number, document in enumerate(documents) for _ in document]
        batch = tagger.encode([sentence for document in documents for sentence in document], documents=owners)
        optimizer.zero_grad()
        tagger.loss(batch).backward()
        torch.nn.utils.clip_grad_norm_(tagger.parameters(), 5.0)
        optimizer.step()
    return tagger.eval()


def tag_new_documents(tagger: Any) -> Outcome:
    chance = random.Random(7)
    fresh = [draw_document(chance) for _ in range(150)]
    words = [word for document in fresh for sentence in document for word in _facts(sentence)]
    return Outcome(
        table=tagger.tabulate(fresh),
        gold=torch.tensor([tagger.vocabulary.labels.index(label) for label, _, _ in words]),
        ambiguous=torch.tensor([is_name and not has_cue for _, is_name, has_cue in words]),
        cue=torch.tensor([is_name and has_cue for _, is_name, has_cue in words]),
    )


def _facts(sentence: Sentence) -> Iterator[tuple[str, bool, bool]]:
    """Yield each word's label, whether it is a name, and whether its sentence reveals the type."""
    for word, label in zip(sentence.words, sentence.labels or (), strict=True):
        yield label, word in NAMES, sentence.words[0] == "the"


@pytest.mark.slow(reason="a tagger is trained until it reads its memory")
def test_memory_resolves_types_that_drafts_can_only_guess() -> None:
    tagger = train_tagger("released", steps=200, seed=1)
    found = tag_new_documents(tagger)
    assert 0.42 < found.draft_accuracy() < 0.58
    assert abs(float(found.table.uncertainty[found.ambiguous].mean()) - math.log(2)) < 0.06
    assert found.accuracy() >= 0.99
    assert bool(found.table.refined[found.ambiguous].float().mean() > 0.99)
    # Certain words are left as they are.
    assert not found.table.refined[found.cue].any()
    assert torch.equal(found.table.label[found.cue], found.gold[found.cue])
    assert float(found.table.refined.float().mean()) < 0.2
    # Without its memory the same tagger can only guess.
    tagger.config = without_slots(tagger.config)
    without = tag_new_documents(tagger)
    assert torch.equal(without.table.refined, found.table.refined)
    assert without.accuracy() < 0.65


@pytest.mark.slow(reason="a tagger is trained until it reads its memory")
def test_memory_resolves_types_beside_both_streams_of_every_layer() -> None:
    found = tag_new_documents(train_tagger("paper", steps=150, seed=2))
    assert 0.42 < found.draft_accuracy() < 0.58
    assert found.accuracy() >= 0.99


Documents = list[list[Sentence]]
Draw = Callable[..., Documents]


@pytest.fixture(params=["uanet", "doc_uanet"])
def tagger(request: pytest.FixtureRequest, build: Callable[..., Any]) -> Any:
    """Return a tagger that is certain of some words and uncertain of others."""
    tagger = build(request.param)
    with torch.no_grad():
        tagger.draft_network.output.weight *= 10
    return tagger


def middle_threshold(tagger: Any, documents: Documents) -> float:
    """Return a threshold that the words of some sentences exceed and those of others do not."""
    table = tagger.tabulate(documents, PredictOptions(threshold=10.0))
    lengths = [len(sentence.words) for document in documents for sentence in document]
    worst = sorted(float(part.max()) for part in table.uncertainty.split(lengths))
    return (worst[len(worst) // 2 - 1] + worst[len(worst) // 2]) / 2


def test_skipping_stage_two_is_lossless_also_within_batches(tagger: Any, random_documents: Draw) -> None:
    """With one sentence per batch the forced pass computes the same sums, so the results are equal bit by bit."""
    documents = random_documents(4, documents=4)
    threshold = middle_threshold(tagger, documents)
    skipping = tagger.tabulate(documents, PredictOptions(threshold=threshold, batch_words=1))
    forced = tagger.tabulate(documents, PredictOptions(threshold=-1.0, batch_words=1))
    drafts = tagger.tabulate(documents, PredictOptions(threshold=10.0, batch_words=1))
    refined = forced.uncertainty > threshold
    assert 0 < int(refined.sum()) < len(refined)
    assert torch.equal(skipping.refined, refined)
    assert torch.equal(skipping.label, torch.where(refined, forced.label, forced.draft))
    assert torch.equal(skipping.probability, torch.where(refined, forced.probability, drafts.probability))
    batched = tagger.tabulate(documents, PredictOptions(threshold=threshold))
    forced = tagger.tabulate(documents, PredictOptions(threshold=-1.0))
    assert torch.equal(batched.label, torch.where(forced.uncertainty > threshold, forced.label, forced.draft))
    assert float((batched.probability - forced.probability)[batched.refined].abs().max()) <= 2e-6


def test_stage_one_reads_once_for_all_samples_and_stage_two_only_uncertain_sentences(
    tagger: Any, random_documents: Draw, record_calls: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = random_documents(5, documents=4, sentences=6)
    documents = [[replace(entry, labels=None) for entry in document] for document in drawn]
    threshold, budget = middle_threshold(tagger, documents), 24
    reads: list[int] = []
    read = SampledLayer.read

    def count(layer: SampledLayer, inputs: Tensor, lengths: Tensor, width: int) -> Any:
        for cells, states in read(layer, inputs, lengths, width):
            reads.extend([states.shape[1]] * cells.shape[1])
            yield cells, states

    monkeypatch.setattr(SampledLayer, "read", count)
    with record_calls(nn.LSTM, WordRepresentation, RefineNetwork) as calls:
        table = tagger.tabulate(documents, PredictOptions(samples=3, threshold=threshold, batch_words=budget))
    lstm_calls = [arguments for module, arguments in calls if isinstance(module, nn.LSTM)]
    drafted = [arguments[0] for module, arguments in calls if module is tagger.draft_network.representation]
    refined = [arguments[0] for module, arguments in calls if isinstance(module, RefineNetwork)]
    represented = [module for module, _ in calls if module is tagger.refine_network.representation]

    sentences = [sentence for document in documents for sentence in document]
    parts = table.uncertainty.split([len(sentence.words) for sentence in sentences])
    uncertain = [id(entry) for entry, part in zip(sentences, parts, strict=True) if float(part.max()) > threshold]
    assert 0 < len(uncertain) < len(sentences)
    assert not lstm_calls
    assert reads == [3] * sum(len(entry.words) for entry in sentences)
    assert sorted(id(entry) for batch in drafted for entry in batch.sentences) == sorted(map(id, sentences))
    assert sorted(id(entry) for batch in refined for entry in batch.sentences) == sorted(uncertain)
    assert len(represented) == len(refined)
    for batch in (*drafted, *refined):
        assert batch.mask.numel() <= budget
    # By length, as full as the budget allows: never many more batches than the padded words need.
    needed = math.ceil(sum(len(sentence.words) for sentence in sentences) / budget)
    assert len(drafted) <= 2 * needed
    assert len(refined) <= len(drafted)


def test_bf16_leaves_all_but_the_encoder_in_fp32_on_a_cpu(tagger: Any, random_documents: Draw) -> None:
    documents = random_documents(4, documents=2)
    exact, rough = (
        tagger.tabulate(documents, PredictOptions(threshold=-1.0, precision=precision))
        for precision in ("fp32", "bf16")
    )
    assert torch.equal(exact.probability, rough.probability)
    assert torch.equal(exact.uncertainty, rough.uncertainty)
