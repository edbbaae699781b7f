"""Annotate document collections: sentences, tokens, dependency trees and entities with a document memory.

>>> nlp = concord.load()
>>> [entity.text for entity in nlp("Ada met Charles in London.").entities]
['Ada', 'Charles', 'London']

The heavy imports wait until a name of this module is used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concord.doc import Doc, Entity, Sentence, Token
    from concord.models.errors import ConcordError, ConfigError
    from concord.nlp import Nlp, load
    from concord.ray_data import Annotator
    from concord.runs import Run, annotate, open, read_text

__all__ = [
    "Annotator",
    "ConcordError",
    "ConfigError",
    "Doc",
    "Entity",
    "Nlp",
    "Run",
    "Sentence",
    "Token",
    "annotate",
    "load",
    "open",
    "read_text",
]

_MODULES = {
    "concord.doc": ("Doc", "Entity", "Sentence", "Token"),
    "concord.models.errors": ("ConcordError", "ConfigError"),
    "concord.nlp": ("Nlp", "load"),
    "concord.ray_data": ("Annotator",),
    "concord.runs": ("Run", "annotate", "open", "read_text"),
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # a type checker shall find unknown names

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'concord' has no attribute {name!r}")
        from importlib import import_module

        from concord._environment import collection_paused, set_environment

        set_environment()
        with collection_paused():
            return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
