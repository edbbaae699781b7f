"""Configurations: validation and messages for invalid values."""

import pytest
from pydantic import Field, field_validator

from concord.models.bundles.registry import tagger_class
from concord.models.config import Config
from concord.models.errors import ConfigError
from concord.models.words.representation import CharCnnConfig, CharLstmConfig, WordRepresentationConfig


class Inner(Config):
    """A part of a configuration."""

    heads: int = Field(default=4, ge=1)


class Outer(Config):
    """A configuration with a part, a list of parts and a part that may be missing."""

    rate: float
    inner: Inner = Inner()
    layers: tuple[Inner, ...] = ()
    spare: Inner | None = None

    @field_validator("rate")
    @classmethod
    def _positive(cls, rate: float) -> float:
        if rate < 0:
            raise ValueError("expected a positive rate")
        return rate


def fault(values: dict[str, object], *, where: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        Outer.from_mapping(values, where=where)
    return str(caught.value)


def test_from_mapping_converts_lists_to_tuples_and_builds_parts() -> None:
    config = Outer.from_mapping({"rate": 1, "layers": [{"heads": 2}, {}], "spare": {"heads": 3}})
    assert config == Outer(rate=1.0, layers=(Inner(heads=2), Inner()), spare=Inner(heads=3))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": 1, "inner": {"head": 2}}, "inner.head: unknown key; did you mean 'heads'?"),
        ({"rate": 1, "spare": {"haeds": 2}}, "spare.haeds: unknown key; did you mean 'heads'?"),
        ({"rate": 1, "layers": [{}, {"width": 2}]}, "layers.1.width: unknown key; known keys: heads"),
        ({"rate": 1, "zzz": 2}, "zzz: unknown key; known keys: inner, layers, rate, spare"),
        ({}, "rate: expected a value, got none"),
        ({"rate": -1}, "rate: expected a positive rate, got -1"),
        ({"rate": "fast"}, "rate: input should be a valid number, got 'fast'"),
        ({"rate": 1, "inner": {"heads": 0}}, "inner.heads: input should be greater than or equal to 1, got 0"),
        ({"rate": True}, "rate: input should be a valid number, got True"),
    ],
)
def test_from_mapping_names_the_key_and_what_was_expected(values: dict[str, object], message: str) -> None:
    assert fault(values) == message


@pytest.mark.parametrize(
    ("characters", "expected"),
    [
        ({"filters": 3}, CharCnnConfig(filters=3)),
        ({"kind": "cnn", "filters": 3}, CharCnnConfig(filters=3)),
        ({"kind": "lstm", "hidden": 3}, CharLstmConfig(hidden=3)),
        (None, None),
    ],
)
def test_character_network_is_chosen_by_kind_and_defaults_to_cnn(
    characters: dict[str, object] | None, expected: Config | None
) -> None:
    config = WordRepresentationConfig.from_mapping({"characters": characters})
    assert config.characters == expected
    assert WordRepresentationConfig.from_mapping(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("characters", "message"),
    [
        ({"filtres": 3}, "representation.characters.filtres: unknown key; did you mean 'filters'?"),
        (
            {"kind": "lstm", "filters": 3},
            "representation.characters.filters: unknown key; known keys: dropout, embedding_dimension, hidden, kind",
        ),
        ({"kind": "gru"}, "representation.characters: expected the kind cnn, lstm or fixed_cnn, got {'kind': 'gru'}"),
        (3, "representation.characters: input should be an object, got 3"),
        (
            {"kind": "lstm", "hidden": 0},
            "representation.characters.hidden: input should be greater than or equal to 1, got 0",
        ),
    ],
)
def test_from_mapping_names_the_keys_of_the_chosen_kind_when_a_union_is_invalid(
    characters: object, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        tagger_class("bilstm_crf").config_class.from_mapping({"representation": {"characters": characters}})
    assert str(caught.value) == message


def test_from_mapping_reports_each_fault_on_a_line_that_starts_with_the_file() -> None:
    lines = fault({"inner": {"heads": 0, "width": 1}}, where="job.yaml").splitlines()
    assert len(lines) == 3
    assert all(line.startswith("job.yaml: ") for line in lines)


def test_configuration_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Outer(rate=1.0).rate = 2.0


def test_from_mapping_rejects_windows_that_do_not_advance() -> None:
    with pytest.raises(ConfigError, match=r"^window_overlap: .*expected less than window_words \(64\), got 64$"):
        tagger_class("bilstm_crf").config_class.from_mapping({"window_words": 64, "window_overlap": 64})
