"""The base class of every configuration."""

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Tag, ValidationError

from concord.models.errors import ConfigError, ModelError
from concord.models.regular_files import read_regular


@dataclass(frozen=True, slots=True)
class Affects:
    """Marks a field by what a change of it affects: ``seconds: Annotated[float, Affects("nothing")]``.

    Attributes:
        what: ``labels``, as of a field without a mark; only ``bytes``, by which no label changes by more than rounding;
            or ``nothing``, which is left out of digests.
        later_runs: whether later runs over the same collection take the value from there; some hold for one run.
    """

    what: Literal["labels", "bytes", "nothing"]
    later_runs: bool = True


_AFFECTS_ALL = Affects("labels")


class Config(BaseModel):
    """A frozen, strict configuration that rejects unknown keys and suggests the nearest known one."""

    # JSON has no infinity: it would be null in every file that keeps a configuration.
    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, where: str = "") -> Self:
        """Validate plain values, as read from YAML or JSON, whose rules apply: a list is accepted for a tuple.

        It raises ConfigError with one line for each fault, each after ``where``, the source of the values.
        """
        try:
            return cls.model_validate_json(json.dumps(values, default=str))
        except ValidationError as error:
            raise ConfigError(_explain(cls, error, where=where)) from None

    @classmethod
    def read_json(cls, path: Path) -> Self:
        """Read a JSON file of a saved tagger, as ``from_mapping`` does; raise ModelError if it is missing or broken."""
        try:
            return cls.from_mapping(json.loads(read_regular(path)), where=str(path))
        except ConfigError as error:
            raise ModelError(str(error)) from error
        except OSError as error:
            raise ModelError(f"{path}: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{path}: expected JSON, got {error}") from error

    def deciding_values(self) -> dict[str, Any]:
        """Return the values that decide a result, as JSON has them: all but those that affect nothing."""
        return self.values_where(lambda mark: mark.what != "nothing")

    def values_where(self, is_wanted: Callable[[Affects], bool]) -> dict[str, Any]:
        """Return the values of the fields whose marks are wanted, as JSON has them."""
        marks = {
            name: next((mark for mark in field.metadata if isinstance(mark, Affects)), _AFFECTS_ALL)
            for name, field in type(self).model_fields.items()
        }
        values = self.model_dump(mode="json", include={name for name, mark in marks.items() if is_wanted(mark)})
        nested = {name: value for name in values if isinstance(value := getattr(self, name), Config)}
        return values | {name: config.values_where(is_wanted) for name, config in nested.items()}


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted keys; lists are kept as values."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat.update(flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value})
    return flat


def first_fault(error: ValidationError) -> str:
    """Return the first fault of a validation with the place of the value, for values that no person has written."""
    fault = error.errors(include_url=False)[0]
    place = ".".join(map(str, fault["loc"]))
    return f"{place}: {fault['msg']}" if place else fault["msg"]


def _explain(config_class: type[BaseModel], error: ValidationError, *, where: str) -> str:
    lines = []
    for fault in error.errors(include_url=False):
        keys, known = _locate(config_class, fault["loc"])
        path = ".".join(keys)
        prefix = ": ".join(filter(None, (where, path)))
        if fault["type"] == "extra_forbidden":
            nearest = difflib.get_close_matches(keys[-1], known, n=1)
            hint = f"did you mean '{nearest[0]}'?" if nearest else f"known keys: {', '.join(sorted(known))}"
            lines.append(f"{prefix}: unknown key; {hint}")
        elif fault["type"] == "missing":
            lines.append(f"{prefix}: expected a value, got none")
        else:
            message = fault["msg"].removeprefix("Value error, ")
            message = message[:1].lower() + message[1:]
            lines.append(f"{prefix}: {message}, got {fault['input']!r}")
    return "\n".join(lines)


def _locate(config_class: type[BaseModel], location: tuple[int | str, ...]) -> tuple[list[str], list[str]]:
    """Return the keys that lead to a fault, and the known keys of the mapping that contains it.

    A location also names the tag of the chosen alternative of a union, which is not a key of the file.
    """
    keys: list[str] = []
    known: list[str] = []
    current: Any = config_class
    for part in location:
        alternative = _tagged_within(current, part)
        if alternative is not None:
            current = alternative
            continue
        fields = getattr(_config_within(current), "model_fields", {})
        keys.append(str(part))
        known = list(fields)
        if part in fields:
            current = fields[part].annotation
    return keys, known


def _tagged_within(annotation: Any, tag: int | str) -> Any:
    if any(isinstance(mark, Tag) and mark.tag == tag for mark in getattr(annotation, "__metadata__", ())):
        return annotation.__origin__
    alternatives = (_tagged_within(argument, tag) for argument in getattr(annotation, "__args__", ()))
    return next((alternative for alternative in alternatives if alternative is not None), None)


def _config_within(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    configs = (_config_within(argument) for argument in getattr(annotation, "__args__", ()))
    return next((config for config in configs if config is not None), None)
