"""Job files: every file in conf/ loads, overrides are strict, paths are made absolute."""

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from concord_testing.checkout import CHECKOUT
from hypothesis import example, given
from hypothesis import strategies as st

from concord.models.bundles.registry import tagger_class
from concord.models.config import flatten
from concord.models.errors import ConcordError, ConfigError
from concord.models.training.fit import FitConfig
from concord.pipeline.config import AnnotateConfig, OutputConfig
from concord.workflows.annotation.job import job_values, read_annotate_job
from concord.workflows.job_files import read_yaml
from concord.workflows.promotion import read_gate
from concord.workflows.training.job import TrainJob, read_train_config, read_train_job

pytestmark = pytest.mark.slow

CONF = CHECKOUT / "conf"

TRAIN = """\
tagger: bilstm_crf
data:
  train: [a.conllu, b.conll.zst]
  dev: c.conllu
  labels: {GPE: LOC, MISC: null}
profiles:
  small:
    model: {hidden: 32}
    fit: {epochs: 3, rate: 1e-3}
  paper:
    model: {hidden: 400}
"""


@pytest.fixture
def train_file(tmp_path: Path) -> Path:
    path = tmp_path / "train.yaml"
    path.write_text(TRAIN)
    return path


@pytest.mark.parametrize("path", sorted(CONF.glob("annotate/*.yaml")), ids=lambda path: path.name)
def test_every_annotate_file_loads(path: Path) -> None:
    assert Path(read_annotate_job(path).input).is_absolute()


@pytest.mark.parametrize("path", sorted(CONF.glob("train/*.yaml")), ids=lambda path: path.name)
def test_every_train_file_loads_in_every_profile(path: Path) -> None:
    for profile in read_train_config(path).profiles:
        job = read_train_job(path, profile=profile)
        assert job.profile == profile
        assert tagger_class(job.tagger).config_class.from_mapping(job.model)
        assert FitConfig.from_mapping(job.fit).epochs >= 1


def test_paper_profiles_of_a_crf_decode_without_constraints() -> None:
    """No paper speaks of constraints."""
    constrained = {
        job.tagger: model.legal_mode
        for path in CONF.glob("train/*.yaml")
        if "paper" in read_train_config(path).profiles
        for job in [read_train_job(path, profile="paper")]
        for model in [tagger_class(job.tagger).config_class.from_mapping(job.model)]
        if hasattr(model, "legal_mode")
    }
    assert constrained == {"bilstm_crf": False, "dependency_aware": False, "structured_refinement": False}


@pytest.mark.parametrize(
    ("tagger", "key", "released"),
    [
        ("structured_refinement", "representation.characters.dropout", 0.5),
        ("doc_uanet", "memory.value_gradient", "released"),
    ],
)
def test_released_profile_differs_from_the_paper_by_what_its_code_adds(tagger: str, key: str, released: object) -> None:
    found = {}
    for profile in ("paper", "released"):
        job = read_train_job(CONF / f"train/{tagger}.yaml", profile=profile)
        found[profile] = flatten(tagger_class(tagger).config_class.from_mapping(job.model).model_dump(mode="json"))
    assert found["released"] == {**found["paper"], key: released}
    assert found["paper"][key] != released


def test_the_example_job_lists_every_key_with_its_default() -> None:
    job = read_yaml(CONF / "annotate/nightly.yaml")
    complete = AnnotateConfig(input="", output=OutputConfig(path="")).model_dump()
    # They have no default of their own.
    del complete["tagger"]["model"], complete["parser"]["package"], complete["parser"]["device"]
    assert {key: set(value) if isinstance(value, dict) else None for key, value in job.items()} == {
        key: set(value) if isinstance(value, dict) else None for key, value in complete.items()
    }
    config = read_annotate_job(CONF / "annotate/nightly.yaml")
    assert config.model_dump(exclude={"input", "output"}) == AnnotateConfig(
        input="", output=OutputConfig(path="")
    ).model_dump(exclude={"input", "output"})
    assert "model" not in config.tagger.model_fields_set


def test_a_train_job_is_one_profile_with_overrides(
    train_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    job = read_train_job(train_file, overrides=["fit.epochs=1", "model.size.words=7", "register_as=mine"])
    assert job.fit == {"epochs": 1, "rate": 0.001}
    assert job.model == {"hidden": 32, "size": {"words": 7}}
    assert job.register_as == "mine"
    assert job.data.paths("train") == [str(tmp_path / "a.conllu"), str(tmp_path / "b.conll.zst")]
    assert job.data.test is None
    assert job.data.labels == {"GPE": "LOC", "MISC": None}


def test_the_digest_of_a_train_job_depends_on_what_determines_the_weights(train_file: Path) -> None:
    job = read_train_job(train_file)
    assert job.digest == read_train_job(train_file, overrides=["register_as=mine"]).digest
    assert job.digest != read_train_job(train_file, overrides=["fit.epochs=4"]).digest


def test_an_unknown_profile_is_refused_naming_the_known_ones(train_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"\(paper, small\), got 'big'"):
        read_train_job(train_file, profile="big")


def _write_profiles(path: Path, profiles: str) -> Path:
    path.write_text(f"tagger: bilstm_crf\ndata: {{train: [a.conllu], dev: c.conllu}}\nprofiles: {profiles}\n")
    return path


def test_profile_lists_only_what_differs_from_the_one_it_extends(tmp_path: Path) -> None:
    path = _write_profiles(
        tmp_path / "train.yaml",
        """
          largest:
            extends: large
            fit: {optimizers: {tagger: {rate: 0.1}}}
          small:
            model: {lstm: {hidden: 32, layers: 1}, characters: {widths: [2, 3]}, encoder: null}
            fit: {epochs: 3, optimizers: {tagger: {kind: sgd, rate: 0.2}}}
          large:
            extends: small
            model: {lstm: {hidden: 64}, characters: {widths: [4]}, encoder: {layers: 4}}
        """,
    )
    small, large, largest = (read_train_job(path, profile=name) for name in ("small", "large", "largest"))
    assert small.model == {"lstm": {"hidden": 32, "layers": 1}, "characters": {"widths": [2, 3]}, "encoder": None}
    assert large.model == {"lstm": {"hidden": 64, "layers": 1}, "characters": {"widths": [4]}, "encoder": {"layers": 4}}
    assert large.fit == small.fit == {"epochs": 3, "optimizers": {"tagger": {"kind": "sgd", "rate": 0.2}}}
    assert largest.model == large.model
    assert largest.fit == {"epochs": 3, "optimizers": {"tagger": {"kind": "sgd", "rate": 0.1}}}


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        (
            "{small: {model: {}}, paper: {model: {}}, large: {extends: smal}}",
            "profiles.large.extends: expected another profile of the file (paper, small), got 'smal'",
        ),
        (
            "{small: {model: {}}, large: {extends: [small]}}",
            "profiles.large.extends: expected another profile of the file (small), got ['small']",
        ),
        ("{small: {extends: small}}", "profiles.small.extends: expected no cycle, got small -> small"),
        (
            "{a: {extends: b}, b: {extends: c}, c: {extends: b}}",
            "profiles.c.extends: expected no cycle, got a -> b -> c -> b",
        ),
        ("{small: {model: 3}, large: {extends: small, model: {}}}", "profiles.small.model: "),
        ("{small: {model: {}}, large: {extends: small, models: {}}}", "profiles.large.models: unknown key"),
    ],
)
def test_wrong_profile_is_named(tmp_path: Path, profiles: str, message: str) -> None:
    path = _write_profiles(tmp_path / "train.yaml", profiles)
    with pytest.raises(ConfigError) as caught:
        read_train_config(path)
    assert f"{path}: {message}" in str(caught.value)


def test_an_annotate_job_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bundle").mkdir()
    job = read_annotate_job(
        None,
        values={"input": "news", "output": "s3://bucket/out", "tagger.model": "bundle"},
        overrides=["reader.text_field=body", "limit=3", "tagger.threshold=1e-2", "parser.directory=packages"],
    )
    assert job.input == str(tmp_path / "news")
    assert job.output.path == "s3://bucket/out"
    assert job.tagger.model == str(tmp_path / "bundle")
    assert job.tagger.threshold == 0.01
    assert job.parser.directory == str(tmp_path / "packages")
    assert (job.reader.text_field, job.limit) == ("body", 3)
    assert "model" in job.tagger.model_fields_set
    assert (
        "model"
        not in read_annotate_job(
            None, values={"input": "x", "output": "y"}, overrides=["limit=2"]
        ).tagger.model_fields_set
    )


def test_an_output_is_a_path_or_a_section(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("input: a\noutput: /out\n")
    plain = read_annotate_job(path)
    assert plain.output == OutputConfig(path="/out")
    kept = read_annotate_job(path, overrides=["output.keep_text=true"])
    assert kept.output == OutputConfig(path="/out", keep_text=True)
    path.write_text("input: a\noutput: {path: /out, keep_text: true}\n")
    assert read_annotate_job(path) == kept
    for elsewhere in (
        read_annotate_job(path, values=job_values({"output": "/new"})),
        read_annotate_job(path, overrides=["output=/new"]),
        read_annotate_job(path, values=job_values({}, {"output": "/new"})),
    ):
        assert elsewhere.output == OutputConfig(path="/new", keep_text=True)
    with pytest.raises(ConfigError, match=r"^output\.path: expected a value, got none$"):
        read_annotate_job(None, values={"input": "a"}, overrides=["output.keep_text=true"])


def test_overrides_take_precedence_over_options_and_options_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("input: a\noutput: b\nlimit: 1\nexecutor: {kind: ray, actors: 7}\n")
    job = read_annotate_job(path, values={"limit": 2, "executor.actors": 8}, overrides=["limit=3"])
    assert (job.limit, job.executor.kind, job.executor.actors) == (3, "ray", 8)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("reader.text_feild=a", "reader.text_feild: unknown key; did you mean 'text_field'"),
        ("limit", "expected key=value"),
        ("=3", "expected key=value"),
        ("limit=three", "limit: input should be a valid integer, got 'three'"),
        ("limit={", "expected a YAML value"),
        ("input.a=1", "input: expected a mapping, got 'x'"),
    ],
)
def test_an_invalid_override_says_what_was_expected(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_annotate_job(None, values={"input": "x", "output": "y"}, overrides=[override])
    assert message in str(caught.value)


def test_corpora_are_one_path_or_many(train_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b.conllu", "a.conllu", "a.conll", ".hidden.conllu"):
        (tmp_path / name).touch()

    def job(*overrides: str) -> TrainJob:
        return read_train_job(train_file, overrides=overrides)

    one = job("data.train=[a.conllu]", "data.dev=b.conllu")
    for same in (["data.train=a.conllu"], ["data.train=a.conll?"], ["data.train=[a.conllu]", "data.dev=[b.conllu]"]):
        assert job("data.dev=b.conllu", *same) == one
        assert job("data.dev=b.conllu", *same).digest == one.digest
    assert one.data.dev == [str(tmp_path / "b.conllu")]
    many = job("data.train=./*.conllu", "data.dev=[a.conll, '*.conllu']", "data.test='[ab].conllu'")
    both = [str(tmp_path / "a.conllu"), str(tmp_path / "b.conllu")]
    assert many.data.paths("train") == both
    assert many.data.paths("dev") == [str(tmp_path / "a.conll"), *both]
    assert many.data.paths("test") == both
    assert one.data.paths("test") == []


def test_training_corpora_have_weights(train_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.conllu", "b.conllu", "c.conll"):
        (tmp_path / name).touch()
    data = read_train_job(train_file, overrides=["data.train=[c.conll, {path: '*.conllu', weight: 1.5}]"]).data
    assert data.paths("train") == [str(tmp_path / name) for name in ("c.conll", "a.conllu", "b.conllu")]
    assert [corpus.weight for corpus in data.train] == [1, 1.5, 1.5]
    with pytest.raises(ConfigError, match=r"data\.train.*weight.*greater than 0"):
        read_train_job(train_file, overrides=["data.train=[{path: c.conll, weight: 0}]"])


def test_a_pattern_without_corpora_is_named(train_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"data\.dev: expected files that match .*/none\*\.conllu, found none"):
        read_train_job(train_file, overrides=["data.dev=none*.conllu"])
    with pytest.raises(ConfigError, match=r"data\.train: .*array.*got 7"):
        read_train_job(train_file, overrides=["data.train=7"])


def test_the_columns_of_a_corpus_are_set_by_name_or_number(train_file: Path) -> None:
    for column in ("xpos", 4):
        job = read_train_job(train_file, overrides=[f"data.label_column={column}", "data.format=conll2012"])
        assert (job.data.label_column, job.data.format) == (column, "conll2012")
    with pytest.raises(ConfigError, match=r"data\.format: .*'conll2013'"):
        read_train_job(train_file, overrides=["data.format=conll2013"])


def test_flatten_gives_dotted_keys() -> None:
    assert flatten({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "d": [1]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "expected a readable YAML file"),
        ("input: a\ninput: b\n", "duplicate key 'input'"),
        ("- a\n", "expected a mapping of keys to values, got list"),
        ("", "expected a mapping of keys to values, got NoneType"),
        ("a: [", "expected YAML"),
        ("a: !!python/name:os.system\n", "expected YAML"),
        ("[a, b]: 1\n", "expected a plain key, got ['a', 'b']"),
        ("? {a: 1}\n: 1\n", "expected a plain key, got {'a': 1}"),
        ("2026-11-22: 1\n", "expected a plain key"),
        ("input: 2026-13-45\n", "month must be in 1..12"),
        ("input: &a [*a]\n", "recursive node"),
        ("input: " + 5_000 * "9" + "\n", "a value that cannot be used"),
        (5_000 * "[" + "\n", "expected YAML"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "job.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


_SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.datetimes() | st.binary()
)
_KEYS = _SCALARS | st.sampled_from(
    ["input", "output", "reader", "tagger", "model", "profiles", "small", "extends", "data", "train", "dev", "slices"]
)
_VALUES = st.recursive(
    _SCALARS | st.sampled_from(["small", "paper", "~nobody/x", "s3://a:b@c/d", "models:/x"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)
_YAML = st.dictionaries(_KEYS, _VALUES, max_size=6).map(lambda values: yaml.safe_dump(values)) | st.text(
    alphabet="ab:-?[]{}&*!|>'\"%@`,#~ \n\t019.e", max_size=60
)


@given(text=_YAML, read=st.sampled_from([read_annotate_job, read_train_config, read_train_job, read_gate]))
@example(text="profiles: {small: {extends: 1}, 2: {}}", read=read_train_config)
def test_arbitrary_yaml_never_ends_in_a_traceback(text: str, read: Callable[[Path], Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.yaml"
        path.write_text(text, encoding="utf-8")
        with suppress(ConfigError, ConcordError):
            read(path)
