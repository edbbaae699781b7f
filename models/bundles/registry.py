"""Taggers by name: modules of ``models/taggers`` and ``models/adapters``, and classes of other packages.

Those are found by their entry points, ``concord.taggers``.

A trained tagger can be given further entity types: every weight with a dimension of labels grows, and old weights are
kept.

A new type begins as the mean of those that the tagger knows: its scores are the mean of theirs. So a tagger whose
scores are sums, by a softmax or a CRF, finds the new type nowhere before it is trained, and wherever an entity is, the
new type is near.
"""

import difflib
import importlib
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, TypeGuard

import torch
from torch import Tensor

from concord.models import adapters, taggers
from concord.models.adapters.base import AdaptedTagger
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError
from concord.models.labels import OUTSIDE, split_label
from concord.models.taggers.base import Tagger

ENTRY_POINTS = "concord.taggers"
_SHARED = {"base", "libraries", "one_stage", "token_table", "two_stage", "two_stage_networks"}
"""Modules of these packages that hold no tagger."""


def available() -> tuple[str, ...]:
    """Return the names of all taggers that can be trained, bundled and of other packages, sorted."""
    return tuple(sorted({*_modules(taggers), *_plugins()}))


def tagger_class(name: str) -> type[Tagger]:
    """Return the class of a tagger.

    Raises:
        ConfigError: for an unknown name, with the nearest known one; for an entry point that is no tagger of its name.
    """
    for package in (taggers, adapters):  # first: to find plugins, the metadata of every installed package is read
        if name in _modules(package):
            module = importlib.import_module(f"{package.__name__}.{name}")
            return next(value for value in vars(module).values() if _is_tagger(value, name))
    if name not in available():
        nearest = difflib.get_close_matches(name, available(), n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known taggers: {', '.join(available())}"
        raise ConfigError(f"tagger: unknown tagger {name!r}; {hint}")
    plugin = _plugins()[name]
    try:
        tagger_type = plugin.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"tagger: expected {plugin.value} to be a Tagger named {name!r}: {error}") from error
    if not _is_tagger(tagger_type, name):
        raise ConfigError(
            f"tagger: expected the entry point {plugin.value} to be a Tagger named {name!r}, got {tagger_type!r}"
        )
    return tagger_type


def build_tagger(name: str, config: Mapping[str, Any], vocabulary: Vocabulary) -> Tagger:
    """Build an untrained tagger from plain configuration values; raise ConfigError if they do not fit it."""
    tagger_type = tagger_class(name)
    return tagger_type(tagger_type.config_class.from_mapping(config, where=name), vocabulary)


@cache
def _modules(package: ModuleType) -> frozenset[str]:
    return frozenset(module.name for module in pkgutil.iter_modules(package.__path__)) - _SHARED


@cache
def _plugins() -> dict[str, EntryPoint]:
    return {plugin.name: plugin for plugin in entry_points(group=ENTRY_POINTS)}


def _is_tagger(value: object, name: str) -> TypeGuard[type[Tagger]]:
    return isinstance(value, type) and issubclass(value, Tagger) and getattr(value, "name", None) == name


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
    vocabulary = tagger.vocabulary.model_copy(update={"labels": scheme.label_set([*known, *types])})
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
