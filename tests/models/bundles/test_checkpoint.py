"""Saved taggers: they load as saved, and damaged files are rejected by name."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from concord.models.bundles.checkpoint import load_tagger, pick_device, save_tagger
from concord.models.bundles.manifest import CONFIG_NAME, WEIGHTS_NAME, needed_encoders, read_saved, tagger_digest
from concord.models.data.sentence import Sentence
from concord.models.errors import ConfigError, ModelError
from concord.models.taggers.base import Tagger

pytestmark = pytest.mark.slow

Build = Callable[..., Tagger]


@pytest.fixture
def saved(build: Build, tmp_path: Path) -> Path:
    save_tagger(build("doc_uanet"), tmp_path)
    return tmp_path


def change_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads((folder / CONFIG_NAME).read_text())
    change(values)
    (folder / CONFIG_NAME).write_text(json.dumps(values))


def test_saved_tagger_keeps_the_source_of_its_trees_and_a_changed_threshold(build: Build, tmp_path: Path) -> None:
    reader: Any = build("dependency_aware")
    tagger: Any = build("uanet")
    assert reader.trees == "unknown"
    reader.trees = "a_parser@1234"
    save_tagger(reader, tmp_path / "reader")
    assert load_tagger(tmp_path / "reader").trees == "a_parser@1234"
    tagger.set_threshold(0.123)
    save_tagger(tagger, tmp_path / "tagger")
    assert load_tagger(tmp_path / "tagger").threshold == 0.123


def test_saved_folder_has_two_files_and_no_class_path(saved: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == [CONFIG_NAME, WEIGHTS_NAME]
    values = json.loads((saved / CONFIG_NAME).read_text())
    assert sorted(values) == ["config", "format_version", "tagger", "trees", "vocabulary"]
    assert values["tagger"] == "doc_uanet"
    assert b"models." not in (saved / CONFIG_NAME).read_bytes()


def test_loading_draws_no_weights_that_the_saved_ones_replace(build: Build, tmp_path: Path) -> None:
    tagger = build("bilstm_crf")
    save_tagger(tagger, tmp_path)
    before = torch.get_rng_state()
    loaded = load_tagger(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in tagger.state_dict().items())


def test_configuration_is_parsed_once_until_it_changes(saved: Path) -> None:
    first = read_saved(saved)
    assert read_saved(saved) is first
    path = saved / CONFIG_NAME
    path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert read_saved(saved) is not first
    assert read_saved(saved) == first


def test_save_tagger_replaces_both_files(build: Build, saved: Path) -> None:
    other = build("uanet", seed=2)
    save_tagger(other, saved)
    loaded = load_tagger(saved)
    assert loaded.name == "uanet"
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in loaded.state_dict().items())


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_weights_are_as_readable_as_the_configuration(build: Build, tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        for _ in range(2):
            save_tagger(build("doc_uanet"), tmp_path / "bundle")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "bundle").iterdir()}
    assert modes == {CONFIG_NAME: 0o666 & ~umask, WEIGHTS_NAME: 0o666 & ~umask}


@pytest.mark.parametrize("name", [CONFIG_NAME, WEIGHTS_NAME])
def test_load_tagger_names_a_missing_file(saved: Path, name: str) -> None:
    (saved / name).unlink()
    for read in (load_tagger, tagger_digest):
        with pytest.raises(ModelError, match=f"{saved / name}: "):
            read(saved)


def test_load_tagger_names_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none/tagger\.json: .*expected a folder written by `concord train`"):
        load_tagger(tmp_path / "none")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"3", b"null", b"\xff\xfe", b'"text"', b"{}"])
def test_load_tagger_rejects_a_file_that_is_no_configuration(saved: Path, content: bytes) -> None:
    (saved / CONFIG_NAME).write_bytes(content)
    with pytest.raises(ModelError, match=r"tagger\.json: (expected JSON|input should be an object|format_version)"):
        load_tagger(saved)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_load_tagger_rejects_another_format_version(saved: Path, version: object) -> None:
    change_config(saved, lambda values: values.update(format_version=version))
    with pytest.raises(ModelError, match=r"tagger\.json: format_version: input should be 1, got"):
        load_tagger(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.pop("vocabulary"), "vocabulary: expected a value, got none"),
        (lambda values: values["vocabulary"].pop("labels"), "vocabulary: labels: expected a value, got none"),
        (lambda values: values.update(tagger="doc_uanett"), "unknown tagger 'doc_uanett'; did you mean 'doc_uanet'"),
        (lambda values: values.update(tagger=["doc_uanet"]), "tagger"),
        (lambda values: values.update(tagger="../../etc/passwd"), "unknown tagger"),
        (lambda values: values.update(unknown=1), "unknown: unknown key"),
        (lambda values: values["config"].update(sampels=3), "sampels: unknown key; did you mean 'samples'"),
        (lambda values: values["config"].update(samples="many"), "samples: .*'many'"),
        (lambda values: values.update(config=None), "config|doc_uanet"),
        (lambda values: values.update(vocabulary=7), "vocabulary: input should be an object, got 7"),
        (lambda values: values["vocabulary"].update(words=7), "vocabulary: words: input should be .* array, got 7"),
        (lambda values: values["vocabulary"].update(labels=["O", 7]), r"vocabulary: labels\.1: .* string, got 7"),
        (lambda values: values.update(trees=7), "trees: input should be a valid string, got 7"),
        (lambda values: values["vocabulary"].update(labels=["O", "X-PER"]), "expected O or one of"),
        (lambda values: values["vocabulary"].update(labels=["O", "S-PER"]), "vocabulary: labels: expected O and all"),
        (lambda values: values["vocabulary"].update(scheme="BIO"), "vocabulary: labels: expected O and all"),
        (
            lambda values: values["config"].update(encoder={"source": "no_such_encoder"}),
            "encoder.source: .*no_such_encoder",
        ),
    ],
)
def test_load_tagger_rejects_a_damaged_configuration(
    saved: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    change_config(saved, change)
    with pytest.raises(ModelError, match=rf"(?s)tagger\.json: .*({message})"):
        load_tagger(saved)


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize("change", [cut, lambda content: b"", lambda content: b"\x80\x04K\x01." + content])
def test_load_tagger_rejects_damaged_weights(saved: Path, change: Callable[[bytes], bytes]) -> None:
    weights = saved / WEIGHTS_NAME
    weights.write_bytes(change(weights.read_bytes()))
    with pytest.raises(ModelError, match=r"weights\.safetensors: "):
        load_tagger(saved)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("doc_uanet", {"label_dimension": 7}),
        ("uanet", {}),
        ("doc_uanet", {"two_stream": {"heads": 2, "head_dimension": 8, "layers": 3}}),
    ],
    ids=["shape", "missing", "surplus"],
)
def test_load_tagger_rejects_weights_of_another_tagger(
    saved: Path, build: Build, tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    other = tmp_path / "other"
    save_tagger(build(name, **changes), other)
    (saved / WEIGHTS_NAME).write_bytes((other / WEIGHTS_NAME).read_bytes())
    with pytest.raises(ModelError, match=r"weights\.safetensors: "):
        load_tagger(saved)


def test_half_precision_shrinks_the_file_and_computes_in_fp32(
    build: Build, tmp_path: Path, documents: list[list[Sentence]]
) -> None:
    tagger = build("doc_uanet")
    save_tagger(tagger, tmp_path / "full")
    save_tagger(tagger, tmp_path / "half", half=True)
    sizes = [(tmp_path / name / WEIGHTS_NAME).stat().st_size for name in ("full", "half")]
    assert sizes[1] < 0.75 * sizes[0]
    loaded = load_tagger(tmp_path / "half")
    for name, value in loaded.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, tagger.state_dict()[name].half().float())
    before, after = tagger.tabulate(documents), loaded.tabulate(documents)
    assert torch.allclose(before.uncertainty, after.uncertainty, atol=1e-2)
    save_tagger(loaded, tmp_path / "again", half=True)
    assert tagger_digest(tmp_path / "again") == tagger_digest(tmp_path / "half")


def test_tagger_digest_is_equal_for_equal_taggers_and_depends_on_both_files(build: Build, saved: Path) -> None:
    first = tagger_digest(saved)
    assert len(first) == 64
    save_tagger(build("doc_uanet"), saved)
    assert tagger_digest(saved) == first
    (saved / "README.md").write_text("a model card")
    assert tagger_digest(saved) == first
    config = (saved / CONFIG_NAME).read_bytes()
    (saved / CONFIG_NAME).write_bytes(config + b" ")
    changed = tagger_digest(saved)
    (saved / CONFIG_NAME).write_bytes(config)
    weights = bytearray((saved / WEIGHTS_NAME).read_bytes())
    weights[-1] ^= 1
    (saved / WEIGHTS_NAME).write_bytes(weights)
    assert len({first, changed, tagger_digest(saved)}) == 3


def test_pick_device_resolves_auto_to_cuda_if_available() -> None:
    assert pick_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    assert pick_device("cpu") == "cpu"


def test_pick_device_refuses_cuda_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        ConfigError, match=r"tagger\.device: expected a CUDA device, found none; use tagger\.device=auto"
    ):
        pick_device("cuda", key="tagger.device")
    assert pick_device("auto") == "cpu"


@pytest.mark.encoder
def test_encoders_of_a_saved_tagger_are_found(build: Build, encoder_values: Mapping[str, Any], tmp_path: Path) -> None:
    save_tagger(build("bilstm_crf", encoder={}), tmp_path)
    assert needed_encoders(tmp_path) == []
    save_tagger(build("bilstm_crf", encoder=encoder_values), tmp_path)
    assert [encoder.source for encoder in needed_encoders(tmp_path)] == [encoder_values["source"]]
