"""The threshold chooses between draft and stage two for each word."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from concord.models.data.outputs import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.decoders.distribution import SoftmaxDistribution
from concord.models.taggers.two_stage import merge_stages

Documents = list[list[Sentence]]
Draw = Callable[..., Documents]


@pytest.fixture(params=["uanet", "doc_uanet"])
def tagger(request: pytest.FixtureRequest, build: Callable[..., Any]) -> Any:
    return build(request.param)


def test_a_word_is_refined_only_when_its_uncertainty_exceeds_the_threshold(tagger: Any, random_documents: Draw) -> None:
    documents = random_documents(0, documents=4)
    everything = tagger.tabulate(documents, PredictOptions(threshold=-1.0))
    threshold = everything.uncertainty.sort().values[len(everything.uncertainty) // 2].item()
    table = tagger.tabulate(documents, PredictOptions(threshold=threshold))
    assert torch.equal(table.refined, table.uncertainty > threshold)
    assert bool(((table.uncertainty == threshold) & ~table.refined).any())
    assert torch.equal(table.label, torch.where(table.refined, everything.label, everything.draft))


def test_threshold_of_the_tagger_applies_unless_set_per_call(tagger: Any, random_documents: Draw) -> None:
    documents = random_documents(0, documents=4)
    middle = tagger.tabulate(documents).uncertainty.median().item()
    tagger.set_threshold(middle)
    assert tagger.threshold == tagger.config.threshold == middle
    own, given = tagger.tabulate(documents), tagger.tabulate(documents, PredictOptions(threshold=middle))
    assert torch.equal(own.refined, given.refined)
    assert 0 < int(own.refined.sum()) < len(own.refined)


def test_merge_stages_takes_each_label_from_its_stage() -> None:
    draft = torch.tensor([[[0.9, 0.1], [0.6, 0.4], [0.5, 0.5]]])
    logits = torch.tensor([[[0.0, 5.0], [0.0, 5.0], [5.0, 0.0]]])
    decided = SoftmaxDistribution(logits, torch.ones(1, 3, dtype=torch.bool))
    merged = merge_stages(draft, torch.tensor([[0.2, 0.5, 0.7]]), decided, 0.5)
    assert merged.refined.tolist() == [[False, False, True]]
    assert merged.labels.tolist() == [[0, 0, 0]]
    assert merge_stages(draft, torch.tensor([[0.6, 0.6, 0.6]]), decided, 0.5).labels.tolist() == [[1, 1, 0]]
    assert torch.allclose(merged.probabilities, logits.softmax(-1))


def test_a_share_of_the_draft_is_averaged_with_what_stage_two_says(tagger: Any, random_documents: Draw) -> None:
    documents = random_documents(0, documents=4)

    def distributions(*, threshold: float, share: float) -> torch.Tensor:
        tagger.config = tagger.config.model_copy(update={"draft_share": share})
        found: torch.Tensor = tagger.tabulate(
            documents, PredictOptions(threshold=threshold), keep="distributions"
        ).distributions
        return found

    drafts, refined = distributions(threshold=9.0, share=0.0), distributions(threshold=-1.0, share=0.0)
    averaged = distributions(threshold=-1.0, share=0.4)
    torch.testing.assert_close(averaged, 0.4 * drafts + 0.6 * refined)
    assert not torch.allclose(averaged, refined)


def test_predictions_have_the_columns_of_the_table(tagger: Any, documents: Documents) -> None:
    table = tagger.tabulate(documents, PredictOptions(threshold=1.0))
    predictions = [
        entry for document in tagger.predict_documents(documents, PredictOptions(threshold=1.0)) for entry in document
    ]
    assert [flag for entry in predictions for flag in entry.refined] == table.refined.tolist()
    assert [value for entry in predictions for value in entry.probabilities] == table.probability.tolist()
    assert [value for entry in predictions for value in entry.uncertainty] == table.uncertainty.tolist()
