"""Calibration of a bundle from the command line."""

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import Result
from concord_testing.checkout import CHECKOUT
from concord_testing.command_line import concord

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import CALIBRATION_NAME, tagger_digest
from concord.workflows.corpora import Provenance, describe_part, read_corpora, read_provenance, write_provenance

EXAMPLES = CHECKOUT / "examples/train"
TRAIN, DEV = EXAMPLES / "train.conllu", EXAMPLES / "dev.conllu"


def calibrate(*arguments: object) -> Result:
    return concord("calibrate", *arguments)


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """Copy the tiny bundle and record the training corpus in its provenance."""
    folder = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, folder)
    learned = describe_part("train", [str(TRAIN)], read_corpora([str(TRAIN)], labels={}))
    write_provenance(folder, Provenance(parts=[learned]))
    return folder


@pytest.mark.slow
def test_bundle_is_calibrated_in_place(bundle: Path, tmp_path: Path) -> None:
    before = tagger_digest(bundle)
    result = calibrate(bundle, "--data", DEV, "--json")
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert (values["digest_before"], values["digest"]) == (before, tagger_digest(bundle))
    assert values["digest"] != before
    assert (values["documents"], values["overlap"]["seen"], values["test"]) == (3, {}, None)
    assert {"tokens", "entities", "coverage"} == set(values["cross_validated"])
    calibration = load_tagger(bundle).calibration
    assert calibration is not None
    assert calibration.fitted["cross_validated"] == values["cross_validated"]
    assert calibration.fitted["files"][0]["name"] == "train/dev.conllu"
    assert str(tmp_path) not in (bundle / CALIBRATION_NAME).read_text()
    provenance = read_provenance(bundle)
    assert provenance is not None
    assert [part.role for part in provenance.parts] == ["train", "calibration"]
    # The data of the calibration that is replaced is allowed, and the same command writes the same bytes.
    again = (bundle / CALIBRATION_NAME).read_bytes()
    assert calibrate(bundle, "--data", DEV).exit_code == 0
    assert (bundle / CALIBRATION_NAME).read_bytes() == again


@pytest.mark.slow
def test_calibrated_copy_leaves_the_source_unchanged(bundle: Path, tmp_path: Path) -> None:
    before = tagger_digest(bundle)
    result = calibrate(bundle, "--data", DEV, "--output", tmp_path / "copy", "--entities", "isotonic")
    assert result.exit_code == 0, result.output
    assert "words by temperature, entities by isotonic" in result.stdout
    assert tagger_digest(bundle) == before
    assert not (bundle / CALIBRATION_NAME).exists()
    assert load_tagger(tmp_path / "copy").calibration is not None
    full = calibrate(bundle, "--data", DEV, "--output", tmp_path / "copy")
    assert (full.exit_code, "expected a new or empty folder" in full.stderr) == (2, True)


@pytest.mark.slow
def test_entities_can_be_left_uncalibrated(bundle: Path) -> None:
    result = calibrate(bundle, "--data", DEV, "--entities", "none", "--json")
    assert result.exit_code == 0, result.output
    entities = json.loads(result.stdout)["cross_validated"]["entities"]
    assert entities["before"] == entities["after"]
    calibration = load_tagger(bundle).calibration
    assert calibration is not None
    assert calibration.summary(candidates=False) == "tokens: temperature, entities: none"


@pytest.mark.slow
def test_calibrate_refuses_documents_that_the_tagger_has_seen(bundle: Path) -> None:
    refused = calibrate(bundle, "--data", TRAIN)
    assert refused.exit_code == 2
    assert "in what it was trained on" in refused.stderr
    assert "--allow-overlap" in refused.stderr
    assert not (bundle / CALIBRATION_NAME).exists()
    result = calibrate(bundle, "--data", TRAIN, "--allow-overlap", "--json")
    assert result.exit_code == 0, result.output
    calibration = load_tagger(bundle).calibration
    assert calibration is not None
    assert calibration.fitted["overlap"]["seen"]["train"] == json.loads(result.stdout)["documents"]


def test_calibrate_refuses_the_calibration_set_as_test_set(bundle: Path) -> None:
    refused = calibrate(bundle, "--data", DEV, "--test", DEV)
    assert refused.exit_code == 2
    assert "--test: expected documents that the tagger has not seen" in refused.stderr
    assert "in what it was calibrated on" in refused.stderr


@pytest.mark.slow
def test_figures_on_a_test_set_are_reported_with_the_cross_validated_ones(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "held.conll"
    other.write_text("Anna\tB-PER\nBell\tI-PER\nsaw\tO\nRome\tB-LOC\n\nNobody\tO\nsaw\tO\nher\tO\n")
    result = calibrate(bundle, "--data", DEV, "--test", other)
    assert result.exit_code == 0, result.output
    for text in ("cross-validated on train/dev.conllu (3 documents", "area under risk and coverage"):
        assert text in result.stdout
    assert re.search(r"held out: \S*/held\.conll \(2 sentences, 7 words", result.stdout)
    assert "--test: " in result.stderr
    assert "2 sentences outside of any document; each counts as a document" in result.stderr


@pytest.mark.slow
def test_calibrate_warns_when_a_bundle_has_no_provenance(tiny_bundle: Path, tmp_path: Path) -> None:
    result = calibrate(tiny_bundle, "--data", DEV, "--output", tmp_path / "copy")
    assert result.exit_code == 0, result.output
    assert "no record of its training data" in result.stderr


def test_only_a_folder_is_calibrated_in_place() -> None:
    refused = calibrate("entities_en_small", "--data", DEV)
    assert (refused.exit_code, "use --output" in refused.stderr) == (2, True)


def test_too_little_data_is_an_input_error(bundle: Path, tmp_path: Path) -> None:
    one = tmp_path / "one.conll"
    one.write_text("-DOCSTART-\tx\n\nAnna\tB-PER\nslept\tO\n")
    for method in ("temperature", "auto"):
        refused = calibrate(bundle, "--data", one, "--tokens", method)
        assert (refused.exit_code, "expected two documents or more" in refused.stderr) == (2, True)
    one.write_text("It\tO\n\nrained\tO\n")
    refused = calibrate(bundle, "--data", one)
    assert (refused.exit_code, "20 entities or more" in refused.stderr) == (2, True)


@pytest.mark.slow
def test_tagger_of_token_labels_is_calibrated(token_bundle: Path, tmp_path: Path) -> None:
    result = calibrate(token_bundle, "-d", DEV, "--label-column", "upos", "-o", tmp_path / "copy", "--json")
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert values["entities"] is None
    assert set(values["cross_validated"]) == {"tokens", "coverage"}
