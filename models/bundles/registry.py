"""Taggers by name: modules of ``models/taggers`` and ``models/adapters``, and classes of other packages.

Those are found by their entry points, ``concord.taggers``.
"""

import difflib
import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, TypeGuard

from concord.models import adapters, taggers
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError
from concord.models.taggers.base import Tagger

ENTRY_POINTS = "concord.taggers"
_SHARED = {"base", "libraries", "one_stage", "token_table", "two_stage"}
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
