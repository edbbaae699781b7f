"""A first pass added from the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from concord_testing.checkout import CHECKOUT

from concord.models.bundles.checkpoint import load_tagger, save_tagger
from concord.models.bundles.manifest import CALIBRATION_NAME, tagger_digest
from concord.models.bundles.registry import build_tagger
from concord.models.data.vocabulary import Vocabulary
from concord.models.taggers.two_stage.tagger import TwoStageTagger
from concord.workflows.bundles import check_bundle, pack_bundle
from concord.workflows.cli.main import main
from concord.workflows.corpora.corpora import read_corpora
from concord.workflows.corpora.provenance import Provenance, describe_part, read_provenance, write_provenance

EXAMPLES = CHECKOUT / "examples/train"
TRAIN, DEV = EXAMPLES / "train.conllu", EXAMPLES / "dev.conllu"


def cascade(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["cascade", *map(str, arguments), "--data", str(DEV), "--train", str(TRAIN)])


@pytest.fixture(scope="module")
def two_stages(tmp_path_factory: pytest.TempPathFactory, two_stage_config: dict[str, Any]) -> Path:
    """Return the folder of a small UANet with random weights, whose provenance names the training corpus."""
    documents = read_corpora([str(TRAIN)], labels={})
    torch.manual_seed(1)
    vocabulary = Vocabulary.from_sentences(sentence for document in documents for sentence in document)
    folder = tmp_path_factory.mktemp("taggers") / "uanet"
    save_tagger(build_tagger("uanet", two_stage_config, vocabulary).eval(), folder)
    own = Provenance(parts=[describe_part("train", [str(TRAIN)], documents)])
    write_provenance(folder, own.taught_by("teacher", "0" * 64, None))
    return folder


def test_tagger_gets_a_first_pass(two_stages: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    before = tagger_digest(two_stages)
    result = cascade(two_stages, tiny_bundle, "--output", tmp_path / "fast", "--tolerance", 100, "--json")
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    (curve,) = values["corpora"].values()
    assert curve[0]["gate"] == 0
    assert values["gate"] == max(score["gate"] for score in curve)
    assert tagger_digest(two_stages) == before != values["digest"] == tagger_digest(tmp_path / "fast")
    tagger = load_tagger(tmp_path / "fast")
    assert isinstance(tagger, TwoStageTagger)
    assert (tagger.gate, tagger.first_pass is None) == (values["gate"], False)
    provenance = read_provenance(tmp_path / "fast")
    assert provenance is not None
    assert [part.role for part in provenance.parts] == ["train", "dev"]
    assert [teacher.name for teacher in provenance.teachers] == ["teacher"]
    assert not (tmp_path / "fast" / CALIBRATION_NAME).exists()
    pack_bundle(tmp_path / "fast", tmp_path / "packed")
    assert "first_pass/weights.safetensors" in check_bundle(tmp_path / "packed").files


def test_gate_can_be_set_and_overridden(two_stages: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    result = cascade(two_stages, tiny_bundle, "--output", tmp_path / "fast", "--gate", 0.15)
    assert result.exit_code == 0, result.output
    assert "gate     0.15 nats" in result.stdout
    own, everything = (
        CliRunner().invoke(main, ["evaluate", str(tmp_path / "fast"), "--data", str(DEV), "--json", *gate])
        for gate in ([], ["--gate", "0"])
    )
    plain = CliRunner().invoke(main, ["evaluate", str(two_stages), "--data", str(DEV), "--json"])
    assert (own.exit_code, everything.exit_code, plain.exit_code) == (0, 0, 0)
    assert json.loads(everything.stdout)["scores"] == json.loads(plain.stdout)["scores"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("tiny", "tiny"), "expected a tagger of two stages (uanet or doc_uanet), got bilstm_crf"),
        (("uanet", "uanet"), "expected a tagger of one stage with LSTM states and without an encoder"),
        (("uanet", "tokens"), "expected the labels of the two stages"),
    ],
)
def test_taggers_that_do_not_fit_are_refused(
    names: tuple[str, str],
    message: str,
    two_stages: Path,
    tiny_bundle: Path,
    token_bundle: Path,
    tmp_path: Path,
) -> None:
    folders = {"uanet": two_stages, "tiny": tiny_bundle, "tokens": token_bundle}
    result = cascade(*(folders[name] for name in names), "--output", tmp_path / "fast")
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr
    assert not (tmp_path / "fast").exists()


def test_an_existing_folder_is_kept(two_stages: Path, tiny_bundle: Path) -> None:
    result = cascade(two_stages, tiny_bundle, "--output", two_stages)
    assert (result.exit_code, "expected a new or empty folder" in result.stderr) == (2, True)
