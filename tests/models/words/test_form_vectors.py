"""Form vectors: the projection, what a vector depends on, the saved table, and taggers without the encoder."""

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from concord.models.bundles.checkpoint import load_tagger, save_tagger
from concord.models.bundles.manifest import lacks_form_encoder
from concord.models.data.batch import BatchEncoder, Forms
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError
from concord.models.words.encoder_config import FormVectorConfig
from concord.models.words.form_vectors import FormVectors
from concord.models.words.frozen_encoder import load_encoder

TEXT = "the river Seine and The River Thames saw ada King laugh in paris or in Paris ; letters home 3 ford works"

pytestmark = pytest.mark.encoder


@pytest.fixture
def config(encoder_values: Mapping[str, Any]) -> FormVectorConfig:
    return FormVectorConfig(source=encoder_values["source"], sha256=None, last_layers=2, dimension=4, table_forms=6)


@pytest.fixture
def fitted(config: FormVectorConfig) -> FormVectors:
    vectors = FormVectors(config)
    vectors.fit(TEXT.split())
    return vectors.eval()


@pytest.fixture
def forms(vocabulary: Vocabulary) -> Callable[..., Forms]:
    return lambda *words: BatchEncoder(vocabulary).encode_forms([Sentence(words=words)])


def rows(vectors: nn.Module, forms: Forms) -> dict[str, list[float]]:
    found: Tensor = vectors(forms)
    return dict(zip(forms.rows, found.tolist(), strict=True))


def test_vectors_are_the_principal_components_of_the_states_of_the_distinct_forms(
    fitted: FormVectors, config: FormVectorConfig, forms: Callable[..., Forms]
) -> None:
    words = sorted({word.lower() for word in TEXT.split()})
    states = torch.cat([load_encoder(config.encoder, "cpu").features([(word,)])[0] for word in words]).double().numpy()
    centred = states - states.mean(axis=0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    expected = centred @ axes[:4].T / np.sqrt((sizes[:4] ** 2 / len(words)).mean())
    found = fitted(forms(*words))[1:].numpy()
    assert np.abs(found) == pytest.approx(np.abs(expected), abs=1e-4)
    assert found.var(axis=0).mean() == pytest.approx(1, abs=1e-4)


def test_a_vector_depends_on_the_form_alone(fitted: FormVectors, forms: Callable[..., Forms]) -> None:
    together = rows(fitted, forms("Xyzzy", "river", "zanzibar", "PARIS", "laughed", "ÉTÉ"))
    for word, vector in together.items():
        assert rows(fresh_copy(fitted), forms(word))[word] == pytest.approx(vector, abs=1e-5)
    assert rows(fitted, forms("paris"))["paris"] == together["PARIS"]
    assert not any(together[""])
    assert any(together["Xyzzy"])


def fresh_copy(fitted: FormVectors) -> FormVectors:
    """Return the same vectors, of which none was computed yet."""
    fresh = FormVectors(fitted._config)
    fresh.load_state_dict(fitted.state_dict())
    return fresh.eval()


def test_forgotten_forms_are_read_again(fitted: FormVectors, forms: Callable[..., Forms]) -> None:
    expected = rows(fitted, forms("xyzzy", "zanzibar", "laughed"))
    small = FormVectors(fitted._config, most_kept=1)
    small.load_state_dict(fitted.state_dict())
    for word in ("xyzzy", "zanzibar", "laughed", "xyzzy"):
        assert rows(small.eval(), forms(word))[word] == pytest.approx(expected[word], abs=1e-5)


def test_the_table_holds_the_most_frequent_forms(fitted: FormVectors) -> None:
    assert bytes(fitted.spellings.tolist()).decode().split("\n") == ["in", "paris", "river", "the", "3", ";"]
    assert fitted.table.shape == (6, 4)


def test_training_hides_a_share_of_the_forms(
    config: FormVectorConfig, fitted: FormVectors, forms: Callable[..., Forms]
) -> None:
    vectors = FormVectors(config.model_copy(update={"hidden": 0.5}))
    vectors.load_state_dict(fitted.state_dict())
    torch.manual_seed(1)
    given = forms(*(f"word{number}" for number in range(200)))
    hidden = (vectors.train()(given)[1:] == 0).all(dim=1)
    assert 70 < int(hidden.sum()) < 130
    assert not (vectors.eval()(given)[1:] == 0).all(dim=1).any()


def test_more_dimensions_than_the_encoder_has_are_refused(config: FormVectorConfig) -> None:
    vectors = FormVectors(config.model_copy(update={"dimension": 17}))
    with pytest.raises(ConfigError, match=r"form_vectors\.dimension: expected 16 or less, got 17"):
        vectors.fit(TEXT.split())


def test_a_saved_tagger_without_the_encoder_uses_its_table(
    config: FormVectorConfig,
    build: Callable[..., Any],
    tiny_config: Callable[[str], dict[str, Any]],
    forms: Callable[..., Forms],
    tmp_path: Path,
) -> None:
    representation = tiny_config("bilstm_crf")["representation"] | {"form_vectors": config.model_dump()}
    tagger = build("bilstm_crf", representation=representation)
    tagger.representation.form_vectors.fit(TEXT.split())
    save_tagger(tagger, tmp_path)
    document = [Sentence(words=("The", "River", "Seine", "in", "Zanzibar"))]
    expected = tagger.predict_documents([document])
    assert load_tagger(tmp_path).predict_documents([document]) == expected
    assert not lacks_form_encoder(tmp_path)

    saved = json.loads((tmp_path / "tagger.json").read_text())
    saved["config"]["representation"]["form_vectors"]["source"] = str(tmp_path / "nowhere")
    (tmp_path / "tagger.json").write_text(json.dumps(saved))
    assert lacks_form_encoder(tmp_path)
    alone = load_tagger(tmp_path)
    with_encoder, without = (
        rows(one.get_submodule("representation.form_vectors"), forms("The", "Seine")) for one in (tagger, alone)
    )
    assert without["The"] == with_encoder["The"]
    assert not any(without["Seine"])
    assert alone.predict_documents([document]) != expected


@pytest.mark.parametrize("seed", range(5))
def test_vectors_do_not_depend_on_how_forms_come(fitted: FormVectors, forms: Callable[..., Forms], seed: int) -> None:
    words = [f"{letter}{number}" for letter in ("paris", "ada", "laugh") for number in range(12)]
    fitted._kept = {}
    expected = rows(fitted, forms(*words))
    draw = random.Random(seed)
    fitted._kept = {}
    left = draw.sample(words, len(words))
    while left:
        part, left = left[: (size := draw.randint(1, 9))], left[size:]
        found = rows(fitted, forms(*part))
        assert {word: found[word] for word in part} == {word: expected[word] for word in part}
