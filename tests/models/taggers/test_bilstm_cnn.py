"""The BiLSTM-CNN taggers: sizes of the paper, loss and attention."""

from collections.abc import Callable

import pytest
import torch
from concord_testing.checkout import CHECKOUT

from concord.models.bundles.registry import build_tagger
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.taggers.base import Tagger
from concord.models.taggers.one_stage import BiLstmCnnTagger
from concord.workflows.training.job import read_train_config

CONF = CHECKOUT / "conf" / "train"
ONTONOTES_TYPES = 18
NAMES = ("baseline_bilstm_cnn", "cross_bilstm_cnn", "att_bilstm_cnn")


@pytest.mark.parametrize(("name", "output"), list(zip(NAMES, (14_673, 14_673, 29_273), strict=True)))
def test_paper_profile_has_the_sizes_of_the_paper(name: str, output: int) -> None:
    profile = read_train_config(CONF / f"{name}.yaml").profiles["paper"]
    types = [f"TYPE{number}" for number in range(ONTONOTES_TYPES)]
    vocabulary = Vocabulary.from_sentences([Sentence(words=("a",))], entity_types=types)
    tagger = build_tagger(name, profile.model, vocabulary)
    assert isinstance(tagger, BiLstmCnnTagger)
    assert len(vocabulary.labels) == 73
    assert tagger.representation.output_dimension == 364
    assert tagger.lstm.output_dimension == 200
    assert sum(weight.numel() for weight in tagger.output.parameters()) == output


@pytest.mark.parametrize("name", NAMES)
def test_loss_is_the_mean_over_words(
    build: Callable[..., Tagger], name: str, sentence: Callable[[str], Sentence]
) -> None:
    sentences = [sentence("Ada/B-PER King/I-PER met Ford/B-PER in Paris/B-LOC ."), sentence("It rained .")]
    tagger = build(name)
    with torch.inference_mode():
        together = float(tagger.loss(tagger.encode(sentences)))
        long, short = (float(tagger.loss(tagger.encode([one]))) for one in sentences)
    assert together == pytest.approx((7 * long + 3 * short) / 10, rel=1e-5)


def test_att_returns_one_map_per_head_and_reads_it(
    build: Callable[..., Tagger], sentence: Callable[[str], Sentence]
) -> None:
    tagger = build("att_bilstm_cnn")
    (maps,) = tagger.attention_maps([sentence("Ada met Ford .")])
    assert {name: (tuple(found.weights.shape), found.columns) for name, found in maps.items()} == {
        "self": ((2, 4, 4), ("Ada", "met", "Ford", "."))
    }
    assert torch.allclose(maps["self"].weights.sum(dim=-1), torch.ones(2, 4))
