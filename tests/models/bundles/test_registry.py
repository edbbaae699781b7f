"""Taggers by name."""

import pytest

from concord.models.bundles.registry import available, build_tagger, tagger_class
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError


def test_every_module_of_taggers_is_one_tagger_of_that_name() -> None:
    assert {"bilstm_crf", "bilstm_softmax", "doc_uanet", "uanet"} <= set(available())
    for name in available():
        assert tagger_class(name).name == name
        assert tagger_class(name).__module__ == f"concord.models.taggers.{name}"


def test_tagger_class_suggests_the_nearest_name_when_unknown() -> None:
    with pytest.raises(ConfigError, match="unknown tagger 'bilstm_crff'; did you mean 'bilstm_crf'"):
        tagger_class("bilstm_crff")
    with pytest.raises(ConfigError, match=r"unknown tagger 'x'; known taggers: att_bilstm_cnn, "):
        tagger_class("x")


def test_build_tagger_rejects_a_key_of_another_tagger(vocabulary: Vocabulary) -> None:
    with pytest.raises(ConfigError, match=r"bilstm_crf: samples: unknown key"):
        build_tagger("bilstm_crf", {"samples": 8}, vocabulary)
