"""Entity types that a trained tagger lacks: every weight with a dimension of labels grows, and old weights are kept.

A new type begins as the mean of those that the tagger knows: its scores are the mean of theirs. So a tagger whose
scores are sums, by a softmax or a CRF, finds the new type nowhere before it is trained, and wherever an entity is, the
new type is near.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from concord.models.adapters.base import AdaptedTagger
from concord.models.errors import ConfigError
from concord.models.labels.spans import OUTSIDE, split_label
from concord.models.taggers.base import Tagger


def with_types(tagger: Tagger, types: Iterable[str]) -> Tagger:
    """Return a tagger of entities that also knows these types, without calibration.

    The scores that it gives the old labels are unchanged, unless lower layers read the labels, as label attention and
    structured refinement do: what is read of the new ones changes them.

    Raises:
        ConfigError: when the model is another library's, or its weights do not grow with the labels.
    """
    scheme, labels = tagger.vocabulary.scheme, tagger.vocabulary.labels
    if isinstance(tagger, AdaptedTagger):
        raise ConfigError(
            f"{tagger.name}: expected no new types, since its labels are those of another library's model"
        )
    known = scheme.types(labels)
    vocabulary = replace(tagger.vocabulary, labels=scheme.label_set([*known, *types]))
    wider = type(tagger)(tagger.config, vocabulary)
    # Not the trained weights: a table that is fitted has its size only once it is loaded.
    shapes = {name: value.shape for name, value in type(tagger)(tagger.config, tagger.vocabulary).state_dict().items()}
    weights, grown = tagger.state_dict(), {}
    for name, value in wider.state_dict().items():
        old, shape = shapes[name], value.shape
        dimensions = [number for number, size in enumerate(shape) if size != old[number]]
        if any((old[number], shape[number]) != (len(labels), len(vocabulary.labels)) for number in dimensions):
            raise ConfigError(
                f"{tagger.name}: expected weights that grow with its labels, got {name} of {tuple(shape)}"
            )
        grown[name] = dimensions
    for kind in sorted(set(types) - known):
        names = scheme.label_set([*known, kind])
        sources = [[labels.index(_as(name, kind, other)) for name in names] for other in sorted(known) or [""]]
        weights = {name: _mean(weights[name], sources, dimensions) for name, dimensions in grown.items()}
        labels, known = names, {*known, kind}
    wider.load_state_dict(weights)
    wider.trees, wider.parser = tagger.trees, tagger.parser
    return wider.train(tagger.training).move_to(tagger.device.type)


def _as(label: str, kind: str, other: str) -> str:
    """Return a label with one type in place of another; outside if there is none."""
    prefix, own = split_label(label)
    if own != kind:
        return label
    return f"{prefix}-{other}" if other else OUTSIDE


def _mean(weight: Tensor, sources: Sequence[Sequence[int]], dimensions: Sequence[int]) -> Tensor:
    """Return the mean over choices of a row for each label; in fp64, so that equal rows have exactly themselves."""
    if not dimensions:
        return weight
    total = torch.zeros(())
    for numbers in sources:
        chosen = weight.double()
        for dimension in dimensions:
            chosen = chosen.index_select(dimension, torch.tensor(numbers, device=weight.device))
        total = total + chosen
    return (total / len(sources)).to(weight.dtype)
