"""The base class of every configuration."""

import difflib
import json
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key, what was expected and what came."""


class Config(BaseModel):
    """A frozen, strict configuration that refuses unknown keys and names the nearest known one."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=()
    )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, where: str = "") -> Self:
        """Check plain values, as read from YAML or JSON.

        They are checked by the rules of JSON, where a list is the only form that a tuple has.

        Args:
            where: what the values came from, set before every message (a file name, say).

        Raises:
            ConfigError: with one line for each fault.
        """
        try:
            return cls.model_validate_json(json.dumps(values, default=str))
        except ValidationError as error:
            raise ConfigError(_explain(cls, error, where=where)) from None


def _explain(config_class: type[BaseModel], error: ValidationError, *, where: str) -> str:
    lines = []
    for fault in error.errors(include_url=False):
        path = ".".join(str(part) for part in fault["loc"])
        prefix = f"{where}: {path}" if where else path
        if fault["type"] == "extra_forbidden":
            known = _keys_beside(config_class, fault["loc"])
            nearest = difflib.get_close_matches(str(fault["loc"][-1]), known, n=1)
            hint = f"did you mean '{nearest[0]}'?" if nearest else f"known keys: {', '.join(sorted(known))}"
            lines.append(f"{prefix}: unknown key; {hint}")
        elif fault["type"] == "missing":
            lines.append(f"{prefix}: expected a value, got none")
        else:
            lines.append(f"{prefix}: {_lower_first(fault['msg'])}, got {fault['input']!r}")
    return "\n".join(lines)


def _keys_beside(config_class: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Give the known keys of the mapping in which the last part of a location stands."""
    current: Any = config_class
    for part in location[:-1]:
        fields = getattr(current, "model_fields", {})
        if part in fields:
            current = _config_within(fields[part].annotation)
    return list(getattr(current, "model_fields", {}))


def _config_within(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _config_within(argument)
        if found is not None:
            return found
    return None


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
