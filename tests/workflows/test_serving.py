"""A tagger as an MLflow model: data only, the same entities as annotate, and errors for bad requests."""

import json
import shutil
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pyarrow.parquet as pq
import pytest
from concord_testing.checkout import CHECKOUT
from concord_testing.command_line import concord
from concord_testing.processes import policy_at_import_of_torch
from mlflow.exceptions import MlflowException
from mlflow.pyfunc import PyFuncModel, scoring_server
from starlette.testclient import TestClient

from concord.models.bundles.manifest import tagger_digest
from concord.models.errors import ConfigError, ModelError
from concord.workflows import serving
from concord.workflows.serving import ENTITY_FIELDS, write_model

pytestmark = pytest.mark.slow

NEWS = CHECKOUT / "examples" / "news" / "news.jsonl"


@pytest.fixture(scope="session")
def model_folder(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an MLflow model of the tiny tagger; tests must not change it."""
    folder = tmp_path_factory.mktemp("served") / "model"
    write_model(tiny_bundle, folder)
    return folder


@pytest.fixture(scope="session")
def served(model_folder: Path) -> PyFuncModel:
    """Return the tiny tagger as loaded by MLflow with unpickling disabled.

    A tagger that reads words alone finds the same entities without trees.
    """
    chosen = {"parser": {"trees": False, "tags": False}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
        return mlflow.pyfunc.load_model(str(model_folder), model_config=chosen)


@pytest.fixture(scope="session")
def annotated(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Return text -> entities of the sample collection, from annotate with the tiny tagger."""
    output = tmp_path_factory.mktemp("annotated") / "out"
    done = concord("annotate", str(NEWS), "-o", str(output), "-m", str(tiny_bundle), "--limit", "5")
    assert done.exit_code == 0, done.output
    ids = pq.read_table(output / "documents", columns=["doc_id"])["doc_id"].to_pylist()
    texts = {record["id"]: record["text"] for record in map(_record, NEWS.read_bytes().split(b"\n")) if record}
    found: dict[str, list[dict[str, Any]]] = {texts[doc_id]: [] for doc_id in ids}
    for row in pq.read_table(output / "entities").to_pylist():
        found[texts[row["doc_id"]]].append({name: row[name] for name in ENTITY_FIELDS})
    assert any(found.values())
    return found


def _record(line: bytes) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}
    return record


def test_a_model_holds_data_only(model_folder: Path) -> None:
    files = {path.relative_to(model_folder).as_posix() for path in model_folder.rglob("*") if path.is_file()}
    bundle = {f"data/bundle/{name}" for name in ("tagger.json", "weights.safetensors")}
    about = {"MLmodel", "conda.yaml", "python_env.yaml", "requirements.txt"}
    assert files == {*bundle, *about, "input_example.json", "serving_input_example.json"}
    requirements = (model_folder / "requirements.txt").read_text()
    assert "torch==2.13.0\n" in requirements
    assert "transformers" not in requirements


def test_predict_returns_the_entities_of_annotate(
    served: PyFuncModel, annotated: dict[str, list[dict[str, Any]]]
) -> None:
    assert served.predict(list(annotated)) == list(annotated.values())
    first = min(annotated, key=len)
    assert served.predict(pd.DataFrame({"text": [first], "id": [1]})) == [
        # In another batch, probabilities are rounded differently.
        [pytest.approx(row, abs=1e-5) for row in annotated[first]]
    ]


def test_idle_threads_of_a_server_sleep() -> None:
    assert policy_at_import_of_torch("import concord.workflows.serving") == "PASSIVE"


def test_offsets_are_code_points_of_the_unchanged_text(served: PyFuncModel) -> None:
    text = "  \U0001f389 Zoë\tflew to  Paris.\r\nŁódź and Genève wrote to Ada Lovelace. "
    (entities,) = served.predict([text])
    assert entities
    assert all(text[entity["start_char"] : entity["end_char"]] == entity["text"] for entity in entities)
    assert served.predict(["", " \n\t"]) == [[], []]
    assert served.predict(pd.DataFrame({"text": []})) == []


@pytest.mark.parametrize(
    ("model_input", "message"),
    [
        (["Paris", None], "text 1: expected a string, got float"),
        ([3], "text 0: expected a string, got int"),
        (pd.DataFrame({"text": ["Paris", None]}), "text 1: expected a string, got (float|NoneType)"),
        (pd.DataFrame({"body": ["Paris"]}), "expected texts or a column 'text', got body"),
        (pd.DataFrame(), "no column|missing inputs"),
        ({"text": ["Paris"]}, "expected texts or a data frame|text 0: expected a string"),
    ],
)
def test_input_that_is_not_text_is_a_bad_request(served: PyFuncModel, model_input: Any, message: str) -> None:
    with pytest.raises(MlflowException, match=message) as caught:
        served.predict(model_input)
    assert caught.value.get_http_status_code() == 400


def test_a_text_that_cannot_be_annotated_is_a_bad_request(served: PyFuncModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("unparsable")

    with pytest.raises(MlflowException, match="text 1: expected whole characters"):
        served._model_impl.predict(["Paris", "\ud800"])
    monkeypatch.setattr(served._model_impl._annotator._parse._parser, "parse", fail)
    with pytest.raises(MlflowException, match="parse: document '0': ValueError: unparsable") as caught:
        served.predict(["Paris"])
    assert caught.value.get_http_status_code() == 400


def test_tampered_weights_are_refused(model_folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(model_folder, tmp_path / "model"))
    weights = copy / "data" / "bundle" / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ModelError, match=r"bundle: expected the digest \w+, got \w+: not what was registered"):
        mlflow.pyfunc.load_model(str(copy))


def test_an_invalid_configuration_key_is_named(model_folder: Path) -> None:
    for configured, message in (
        ({"parser": {"pakage": "x"}}, r"model_config: parser\.pakage: unknown key; did you mean 'package'"),
        ({"tagger": {"model": "entities_multi"}}, r"tagger\.model: expected no such key"),
    ):
        with pytest.raises(ConfigError, match=message):
            mlflow.pyfunc.load_model(str(model_folder), model_config=configured)


def test_taggers_of_token_labels_or_other_trees_are_not_served(
    tiny_bundle: Path, token_bundle: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="a tagger of token labels, which does not annotate"):
        serving._load_pyfunc(str(token_bundle), {"digest": tagger_digest(token_bundle)})
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    saved = json.loads((bundle / "tagger.json").read_text())
    (bundle / "tagger.json").write_text(json.dumps(saved | {"trees": "gold"}))
    with pytest.raises(ModelError, match="learned from the trees of 'gold'"):
        serving._load_pyfunc(str(bundle), {"digest": tagger_digest(bundle)})


@pytest.fixture(scope="session")
def client(served: PyFuncModel) -> TestClient:
    """Return a client of MLflow's scoring server; docs/lifecycle.md starts one by its command."""
    return TestClient(scoring_server.init(served))


def test_the_server_answers_with_the_entities_of_annotate(
    client: TestClient, annotated: dict[str, list[dict[str, Any]]]
) -> None:
    texts, expected = list(annotated), {"predictions": list(annotated.values())}
    for body in (
        {"inputs": texts},
        {"instances": texts},
        {"dataframe_split": {"columns": ["text"], "data": [[text] for text in texts]}},
        {"dataframe_records": [{"text": text} for text in texts]},
        {"inputs": [{"text": text} for text in texts]},
    ):
        assert client.post("/invocations", json=body).json() == expected
    assert client.post("/invocations", json={"inputs": ["", " "]}).json() == {"predictions": [[], []]}


@pytest.mark.parametrize(
    ("body", "content_type", "status", "reason"),
    [
        ({"inputs": ["Paris", None]}, "application/json", 400, "text 1: expected a string"),
        ({"inputs": {"text": ["Paris"]}}, "application/json", 400, "un-named"),
        ({"text": "Paris"}, "application/json", 400, "exactly one of the input fields"),
        ({"inputs": ["Paris"], "params": {"threshold": 1}}, "application/json", 200, ""),
        (b'{"inputs": ["Pa', "application/json", 400, "valid JSON"),
        (b'{"inputs": ["\\ud800"]}', "application/json", 400, "surrogates not allowed"),
        (b"text\nParis\n", "text/csv", 400, ""),
        (b"Paris", "text/plain", 415, "content types"),
    ],
)
def test_the_server_explains_a_bad_request(
    client: TestClient, body: Any, content_type: str, status: int, reason: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post("/invocations", content=content, headers={"Content-Type": content_type})
    assert (answer.status_code, reason in answer.text) == (status, True), answer.text
