"""What taggers ask of a GPU, counted on a fake one, and that their labels are those of the CPU."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from concord_testing.checkout import CHECKOUT
from concord_testing.fake_device import FakeDevice

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.registry import available
from concord.models.data.outputs import Prediction, PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.words.bert import fastest_product
from concord.models.words.encoder import load_encoder
from concord.models.words.encoder_config import BUNDLED_NAME
from concord.pipeline.corpora.gold_corpus import read_gold

pytestmark = pytest.mark.slow

Draw = Callable[..., list[list[Sentence]]]
Build = Callable[..., Any]
REFINE_ALL = PredictOptions(threshold=-1.0)
TWO_STAGES = ("uanet", "doc_uanet")


@pytest.fixture
def gpu() -> Iterator[FakeDevice]:
    """Enter a fake GPU; what is kept of it for a process is forgotten afterwards."""
    with FakeDevice() as device:
        yield device
    load_encoder.cache_clear()
    fastest_product.cache_clear()


def assert_close(found: list[list[Prediction]], expected: list[list[Prediction]], *, difference: float) -> None:
    for left, right in zip(found, expected, strict=True):
        for one, other in zip(left, right, strict=True):
            assert (one.labels, one.draft_labels, one.refined) == (other.labels, other.draft_labels, other.refined)
            for name in ("probabilities", "margins", "uncertainty", "confidences"):
                assert getattr(one, name) == pytest.approx(getattr(other, name), abs=difference)


@pytest.mark.parametrize("name", available())
def test_labels_are_those_of_the_cpu(name: str, build: Build, random_documents: Draw, gpu: FakeDevice) -> None:
    tagger, documents = build(name), random_documents(3, documents=2, sentences=2)
    for options in (REFINE_ALL, PredictOptions(threshold=10.0))[: 2 if name in TWO_STAGES else 1]:
        with torch.inference_mode():
            expected = tagger.move_to("cpu").predict_documents(documents, options)
        gpu.clear()
        found = tagger.move_to("cuda").predict_documents(documents, options)
        assert gpu.launches.total() > 0
        assert_close(found, expected, difference=1e-5)


def over_the_encoder(build: Build, **changes: Any) -> Any:
    """Return a tiny Doc-UANet with weight samples, which reads passages by the bundled encoder."""
    section = {"word_dimension": 4, "characters": None, "encoder_dimension": 8}
    sections = {"draft_representation": section, "refine_representation": section}
    encoder = {"source": BUNDLED_NAME, "passage_words": 20}
    return build("doc_uanet", **sections, encoder=encoder, samples=4, samples_above=0.0, **changes)


def test_the_host_never_waits_within_a_batch(build: Build, random_documents: Draw, gpu: FakeDevice) -> None:
    tagger = over_the_encoder(build)
    expected = tagger.predict_documents(random_documents(5, documents=3), REFINE_ALL)
    tagger.move_to("cuda").predict_documents(random_documents(6, documents=1), REFINE_ALL)
    gpu.clear()
    found = tagger.predict_documents(random_documents(5, documents=3), REFINE_ALL)
    assert not gpu.waits
    assert gpu.copies["to_device"] <= 20
    assert gpu.copies["to_host"] <= 5
    assert_close(found, expected, difference=0.01)  # the encoder's states differ by rounding before its int8


def test_launches_grow_with_batches_rather_than_sentences(
    build: Build, random_documents: Draw, gpu: FakeDevice
) -> None:
    tagger = over_the_encoder(build).move_to("cuda")
    few, many = (random_documents(5, documents=number, longest=6) for number in (2, 16))
    tagger.predict_documents(few, REFINE_ALL)
    counts = []
    for documents in (few, many):
        gpu.clear()
        tagger.predict_documents(documents, REFINE_ALL)
        counts.append(gpu.launches.total())
    assert counts[1] < 1.2 * counts[0]


def test_a_batch_begins_before_the_one_before_it_is_read(
    build: Build, random_documents: Draw, gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    monkeypatch.setattr("torch.cuda.Event.synchronize", lambda event: steps.append("read"))
    tagger = build("bilstm_softmax").move_to("cuda")
    encode = tagger.encode

    def begin(*arguments: Any, **more: Any) -> Any:
        steps.append("begin")
        return encode(*arguments, **more)

    monkeypatch.setattr(tagger, "encode", begin)
    tagger.predict_documents(random_documents(5, documents=6), PredictOptions(batch_words=2))
    batches = steps.count("begin")
    assert batches >= 4
    assert steps[:3] == ["begin", "begin", "read"]


@pytest.mark.parametrize("name", TWO_STAGES)
def test_a_training_step_waits_for_nothing_and_has_the_gradients_of_the_cpu(
    name: str, build: Build, documents: list[list[Sentence]], gpu: FakeDevice
) -> None:
    tagger, gradients = build(name).train(), []
    owners = [number for number, document in enumerate(documents) for _ in document]
    for device in ("cpu", "cuda"):
        tagger.move_to(device).zero_grad()
        torch.manual_seed(2)
        gpu.clear()
        tagger.loss(tagger.encode([one for document in documents for one in document], documents=owners)).backward()
        assert not gpu.waits
        gradients.append({key: value.grad for key, value in tagger.named_parameters() if value.grad is not None})
    assert gradients[0]
    for key, expected in gradients[0].items():
        assert torch.allclose(gradients[1][key].cpu(), expected, atol=1e-5), key


@pytest.mark.parametrize("name", ["entities_multi", "entities_en_small"])
def test_bundled_taggers_never_wait(name: str, gpu: FakeDevice) -> None:
    words = ("Ada", "Lovelace", "met", "Charles", "Babbage", "in", "London", ".", "Babbage", "lived", "there", ".")
    documents = [[Sentence(words=words[:8]), Sentence(words=words[8:])] for _ in range(3)]
    tagger = load_tagger(CHECKOUT / "models/pretrained" / name)
    expected = tagger.predict_documents(documents)
    tagger.move_to("cuda").predict_documents(documents)
    gpu.clear()
    found = tagger.predict_documents(documents)
    assert not gpu.waits
    assert labels(found) == labels(expected)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["entities_multi", "entities_en_small", "entities_bio"])
def test_bundled_taggers_find_on_a_real_gpu_what_they_find_on_a_cpu(name: str) -> None:
    documents = read_gold(CHECKOUT / "examples/train/train.conllu")
    tagger = load_tagger(CHECKOUT / "models/pretrained" / name)
    expected = tagger.predict_documents(documents)
    tagger.move_to("cuda")
    found = [tagger.predict_documents(documents, PredictOptions(batch_words=words)) for words in (64, 4096)]
    assert labels(found[0]) == labels(found[1]) == labels(expected)


def labels(found: list[list[Prediction]]) -> list[tuple[str, ...]]:
    return [one.labels for document in found for one in document]
