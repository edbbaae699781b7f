"""Form vectors: the projection, what a vector depends on, and the saved table."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from concord_testing.checkout import CHECKOUT
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from concord.models.bundles.checkpoint import load_tagger, save_tagger
from concord.models.data.batch import BatchEncoder, Forms
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError, EncoderMissingError
from concord.models.words import bert
from concord.models.words.bert import float_product
from concord.models.words.encoder import load_encoder
from concord.models.words.encoder_config import BUNDLED_NAME, EncoderConfig, FormVectorConfig
from concord.models.words.form_vectors import FormVectors

pytestmark = pytest.mark.slow

TEXT = "the river Seine and The River Thames saw ada King laugh in paris or in Paris ; letters home 3 ford works"


@pytest.fixture(scope="module")
def config() -> FormVectorConfig:
    return FormVectorConfig(encoder=EncoderConfig(source=BUNDLED_NAME), dimension=12, table_forms=6)


@pytest.fixture(scope="module")
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
    words = sorted(set(TEXT.split()))
    states = torch.cat([load_encoder(config.encoder, "cpu").features([(word,)])[0] for word in words]).double().numpy()
    centred = states - states.mean(axis=0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    expected = centred @ axes[:12].T / np.sqrt((sizes[:12] ** 2 / len(words)).mean())
    found = fitted(forms(*words))[1:].numpy()
    assert found.var(axis=0).mean() == pytest.approx(1, abs=0.02)
    # Products in int8 are off by about a hundredth.
    assert np.abs(found) == pytest.approx(np.abs(expected), abs=0.08)


def test_a_vector_depends_on_the_form_alone(fitted: FormVectors, forms: Callable[..., Forms]) -> None:
    together = rows(fitted, forms("Xyzzy", "river", "The", "the", "THE", "laughed", "ÉTÉ"))
    for word, vector in together.items():
        assert rows(fresh_copy(fitted), forms(word))[word] == vector
    assert not any(together[""])
    assert any(together["Xyzzy"])
    assert len({tuple(together[word]) for word in ("The", "the", "THE")}) == 3


def test_vectors_that_are_computed_where_autocast_is_on_are_the_same(
    fitted: FormVectors, forms: Callable[..., Forms], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = rows(fresh_copy(fitted), forms("Xyzzy", "zanzibar"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert rows(fresh_copy(fitted), forms("Xyzzy", "zanzibar")) == expected
        monkeypatch.setattr(bert, "fastest_product", lambda device: float_product)
        assert rows(fresh_copy(fitted), forms("Xyzzy", "zanzibar")) == expected


def fresh_copy(fitted: FormVectors, **changes: Any) -> FormVectors:
    """Return the same vectors, of which none was computed yet."""
    fresh = FormVectors(fitted._config, **changes)
    fresh.load_state_dict(fitted.state_dict())
    return fresh.eval()


def without_table(fitted: FormVectors) -> FormVectors:
    """Return the same vectors with an empty table, so that each of them is computed."""
    state = fitted.state_dict() | {"table": fitted.table[:0], "spellings": fitted.spellings[:0]}
    fresh = FormVectors(fitted._config)
    fresh.load_state_dict(state)
    return fresh.eval()


LETTERS = "abcdeéßłñžABCDEÉАбвγδ東京あ1234.-'&\u0301\u200d"
FORMS = st.one_of(st.sampled_from(sorted(set(TEXT.split()))), st.text(LETTERS, min_size=1, max_size=15))


@given(data=st.data())
def test_vectors_are_equal_to_the_bit_however_forms_are_split_over_calls(
    fitted: FormVectors, forms: Callable[..., Forms], data: st.DataObject
) -> None:
    words = data.draw(st.lists(FORMS, min_size=1, max_size=40, unique=True))
    expected = rows(without_table(fitted), forms(*words))
    order = data.draw(st.permutations(words))
    instances = [fitted, fresh_copy(fitted), without_table(fitted), fresh_copy(fitted, most_kept=3)]
    while order:
        size = data.draw(st.integers(1, len(order)))
        chosen, order = order[:size], order[size:]
        found = rows(data.draw(st.sampled_from(instances)), forms(*chosen))
        assert found == {form: expected[form] for form in found}


CHECK = """
import json
import sys
import torch
from concord.models.data.batch import BatchEncoder
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.words.encoder_config import FormVectorConfig
from concord.models.words.form_vectors import FormVectors

torch.set_num_threads(2)
vectors = FormVectors(FormVectorConfig.from_mapping(json.loads(sys.argv[2])))
vectors.load_state_dict(torch.load(sys.argv[1]))
vocabulary = Vocabulary.from_sentences([Sentence(words=("a",), labels=("B-PER",))])
forms = BatchEncoder(vocabulary).encode_forms([Sentence(words=tuple(reversed(sys.argv[3:])))])
for form, vector in zip(forms.rows, vectors.eval()(forms).numpy(), strict=True):
    print(form.encode().hex(), vector.tobytes().hex())
"""


def test_vectors_are_equal_to_the_bit_in_another_process(
    fitted: FormVectors, forms: Callable[..., Forms], tmp_path: Path
) -> None:
    words = ("Xyzzy", "river", "zanzibar", "Köln", "PARIS", "the", "Москва")
    torch.save(fitted.state_dict(), tmp_path / "state.pt")
    child = subprocess.run(
        [sys.executable, "-c", CHECK, str(tmp_path / "state.pt"), fitted._config.model_dump_json(), *words],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert child.returncode == 0, child.stderr
    found = {}
    for line in child.stdout.splitlines():
        form, _, vector = line.partition(" ")
        found[bytes.fromhex(form).decode()] = np.frombuffer(bytes.fromhex(vector), np.float32).tolist()
    assert found == rows(fitted, forms(*words))


def test_forgotten_forms_are_read_again(fitted: FormVectors, forms: Callable[..., Forms]) -> None:
    words = ("xyzzy", "zanzibar", "laughed")
    expected = rows(fitted, forms(*words))
    small = fresh_copy(fitted, most_kept=1)
    for word in (*words, "xyzzy"):
        assert rows(small, forms(word))[word] == expected[word]


def test_forms_that_another_thread_forgets_meanwhile_keep_their_vectors(
    fitted: FormVectors, forms: Callable[..., Forms], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = rows(fitted, forms("xyzzy", "zanzibar"))
    small = fresh_copy(fitted, most_kept=1)
    read = small._read

    def read_while_others_do(words: Sequence[str]) -> Tensor:
        monkeypatch.setattr(small, "_read", read)
        small(forms("laughed", "Ada"))
        return read(words)

    monkeypatch.setattr(small, "_read", read_while_others_do)
    assert rows(small, forms("xyzzy", "zanzibar")) == expected


def test_the_table_holds_the_most_frequent_forms_as_they_are_computed(
    fitted: FormVectors, forms: Callable[..., Forms]
) -> None:
    frequent = bytes(fitted.spellings.tolist()).decode().split("\n")
    assert frequent == ["in", "3", ";", "King", "Paris", "River"]
    assert fitted.table.shape == (6, 12)
    computed = rows(without_table(fitted), forms(*frequent))
    assert [computed[form] for form in frequent] == fitted.table.tolist()
    # All values are those of fp16.
    for values in (fitted(forms("xyzzy", "Zanzibar", "the")), fitted.table, fitted.mean, fitted.projection):
        assert torch.equal(values, values.half().float())


@pytest.mark.parametrize("table_forms", [0, 1, 100])
def test_vectors_are_the_same_with_a_table_of_any_size(
    table_forms: int, config: FormVectorConfig, forms: Callable[..., Forms]
) -> None:
    words = [*TEXT.split(), "New\nYork", "New\nYork", "New\nYork"]
    vectors = FormVectors(config.model_copy(update={"table_forms": table_forms}))
    vectors.fit(words)
    assert len(vectors.table) == min(table_forms, len(set(TEXT.split())))
    chosen = forms(*words, "New", "Zanzibar")
    expected = rows(vectors.eval(), chosen)
    assert rows(fresh_copy(vectors), chosen) == expected
    assert rows(without_table(vectors), chosen) == expected


def test_training_hides_a_share_of_the_forms(
    config: FormVectorConfig, fitted: FormVectors, forms: Callable[..., Forms]
) -> None:
    vectors = FormVectors(config.model_copy(update={"hidden": 0.5}))
    vectors.load_state_dict(fitted.state_dict())
    torch.manual_seed(1)
    many = forms(*(f"word{number}" for number in range(200)))
    hidden = (vectors.train()(many)[1:] == 0).all(dim=1)
    assert 70 < int(hidden.sum()) < 130
    assert not (vectors.eval()(many)[1:] == 0).all(dim=1).any()


def test_more_dimensions_than_the_encoder_has_are_refused(config: FormVectorConfig) -> None:
    vectors = FormVectors(config.model_copy(update={"dimension": 385}))
    with pytest.raises(ConfigError, match=r"form_vectors\.dimension: expected 384 or less, got 385"):
        vectors.fit(TEXT.split())


@pytest.mark.parametrize("half", [False, True])
def test_saved_vectors_have_the_same_bits(
    half: bool,
    config: FormVectorConfig,
    build: Callable[..., Any],
    tiny_config: Callable[[str], dict[str, Any]],
    forms: Callable[..., Forms],
    tmp_path: Path,
) -> None:
    representation = tiny_config("bilstm_crf")["representation"] | {"form_vectors": config.model_dump(mode="json")}
    tagger = build("bilstm_crf", representation=representation)
    tagger.representation.form_vectors.fit(TEXT.split())
    save_tagger(tagger, tmp_path, half=half)
    loaded = load_tagger(tmp_path)
    words = forms("the", "in", "Seine", "Zanzibar", "xyzzy")
    before, after = (rows(one.get_submodule("representation.form_vectors"), words) for one in (tagger, loaded))
    assert after == before
    document = [Sentence(words=("The", "River", "Seine", "in", "Zanzibar"))]
    if not half:
        assert loaded.predict_documents([document]) == tagger.predict_documents([document])
    shutil.copytree(tmp_path, tmp_path / "moved")
    assert load_tagger(tmp_path / "moved").predict_documents([document]) == loaded.predict_documents([document])


def test_forms_without_case_are_read_in_lower_case(config: FormVectorConfig, forms: Callable[..., Forms]) -> None:
    vectors = FormVectors(config.model_copy(update={"cased": False}))
    vectors.fit(TEXT.split())
    assert bytes(vectors.spellings.tolist()).decode().split("\n") == ["in", "paris", "river", "the", "3", ";"]
    found = rows(vectors.eval(), forms("The", "the", "LAUGHED", "laughed"))
    assert (found["The"], found["LAUGHED"]) == (found["the"], found["laughed"])


@pytest.mark.encoder
def test_forms_are_read_by_an_encoder_of_a_folder(
    encoder_values: Mapping[str, Any], forms: Callable[..., Forms]
) -> None:
    vectors = FormVectors(FormVectorConfig.from_mapping({"encoder": encoder_values, "dimension": 4}))
    vectors.fit(TEXT.split())
    assert vectors.eval()(forms("the", "Zanzibar")).shape == (3, 4)
    missing = {"encoder": {"source": "no_such_encoder"}, "dimension": 4}
    alone = FormVectors(FormVectorConfig.from_mapping(missing))
    alone.load_state_dict(vectors.state_dict())
    with pytest.raises(EncoderMissingError, match="no_such_encoder"):
        alone.eval()(forms("Zanzibar"))
