"""Taggers by name: a tagger's name is that of its module in ``models/taggers``."""

import difflib
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from concord.models import taggers
from concord.models.config import ConfigError
from concord.models.data.vocabulary import Vocabulary
from concord.models.tagger import Tagger


def available() -> tuple[str, ...]:
    """Give the names of all taggers, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(taggers.__path__)))


def tagger_class(name: str) -> type[Tagger]:
    """Give the tagger of a name.

    Raises:
        ConfigError: for an unknown name; offers the nearest known one.
    """
    if name not in available():
        nearest = difflib.get_close_matches(name, available(), n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known taggers: {', '.join(available())}"
        raise ConfigError(f"tagger: unknown tagger {name!r}; {hint}")
    module = importlib.import_module(f"concord.models.taggers.{name}")
    return next(
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Tagger) and getattr(value, "name", None) == name
    )


def build_tagger(name: str, config: Mapping[str, Any], vocabulary: Vocabulary) -> Tagger:
    """Build an untrained tagger from plain configuration values.

    Raises:
        ConfigError: for an unknown tagger or a configuration that does not fit it.
    """
    found = tagger_class(name)
    return found(found.config_class.from_mapping(config, where=name), vocabulary)
