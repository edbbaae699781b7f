"""Merging the stages: which stage labels a word, and how probable an entity is whose labels come from both."""

import torch
from torch import Tensor

from concord.models.decoders.distribution import LabelDistribution, SpanQuery
from concord.models.decoders.softmax import joint_probability
from concord.models.outputs import Refined


def merge_stages(
    draft_probabilities: Tensor, uncertainty: Tensor, stage_two: LabelDistribution, threshold: float
) -> Refined:
    """Keep drafts whose uncertainty, in nats, is at most the threshold; take stage two's labels elsewhere.

    Stage two, a CRF too, labels every word before its labels are chosen from: what it predicts for a word depends
    neither on the threshold nor on which drafts are kept. The mixture need not be well formed; the span decoder drops
    what is not.
    """
    refined = uncertainty > threshold
    labels = torch.where(refined, stage_two.mode(), draft_probabilities.argmax(dim=-1))
    return Refined(probabilities=stage_two.marginals(), labels=labels, refined=refined)


def span_probability(samples: Tensor, stage_two: LabelDistribution, refined: Tensor, query: SpanQuery) -> Tensor:
    """Return the probability of spans whose words take their labels from either stage, shape ``(K,)``.

    The drafted words of a span depend on each other through the weight samples, so their product is taken within each
    sample. Stage two reads the mean of the samples, so its part is the same in all of them.

    Args:
        samples: stage one's probabilities in each weight sample, shape ``(M, B, T, L)``.
        refined: true where the label is stage two's, shape ``(B, T)``, bool.
    """
    return drafted_probability(samples, query.restricted_to(~refined)) * stage_two.span_probability(
        query.restricted_to(refined)
    )


def drafted_probability(samples: Tensor, query: SpanQuery) -> Tensor:
    """Return the probability of spans whose labels are all drafts, shape ``(K,)``; arguments as above."""
    return joint_probability(samples, query).mean(dim=0)
