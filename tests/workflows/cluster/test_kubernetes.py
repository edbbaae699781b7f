"""Manifests for Kubernetes: only existing fields, and the settings that a run needs."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from concord_testing.checkout import CHECKOUT
from concord_testing.command_line import concord

from concord.models.errors import ConfigError
from concord.workflows.annotation.job import read_annotate_job
from concord.workflows.cluster.kubernetes import KubernetesConfig, read_kubernetes
from concord.workflows.yaml_values import read_yaml

CONF = CHECKOUT / "conf"
NIGHTLY = CONF / "annotate/nightly.yaml"
SHARED = ("--set", "input=/data/news", "--set", "output=/data/out")

# Fields of the Go types (KubeRay 1.6, Kubernetes 1.31) that are relevant to an annotation job.
POD = {"restartPolicy", "terminationGracePeriodSeconds", "containers", "volumes"}
CONTAINER = {"name", "image", "command", "env", "resources", "volumeMounts"}
RAY_JOB = {
    *("entrypoint", "backoffLimit", "activeDeadlineSeconds", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished"),
    *("runtimeEnvYAML", "rayClusterSpec", "submissionMode", "jobId", "entrypointNumCpus", "suspend"),
}
RAY_CLUSTER = {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
WORKER_GROUP = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
CRON_JOB = {
    *("schedule", "timeZone", "concurrencyPolicy", "startingDeadlineSeconds", "suspend", "jobTemplate"),
    *("successfulJobsHistoryLimit", "failedJobsHistoryLimit"),
}


def manifests(kind: str, *arguments: str, job: Path = NIGHTLY) -> list[dict[str, Any]]:
    result = concord("submit", job, "--print", kind, *SHARED, *arguments, "--kubernetes", CONF / "kubernetes.yaml")
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.stdout))


def check_pod(pod: dict[str, Any]) -> None:
    assert set(pod) <= POD
    for container in pod["containers"]:
        assert set(container) <= CONTAINER
        assert set(container["resources"]) == {"requests", "limits"}
        assert {mount["name"] for mount in container["volumeMounts"]} <= {volume["name"] for volume in pod["volumes"]}


def test_the_kubernetes_file_lists_every_key_with_its_default() -> None:
    settings = read_kubernetes(CONF / "kubernetes.yaml")
    assert set(read_yaml(CONF / "kubernetes.yaml")) == set(KubernetesConfig.model_fields)
    assert settings == KubernetesConfig(image=settings.image, volumes=settings.volumes)


def test_a_ray_job_has_known_fields_and_the_installed_ray_version() -> None:
    config_map, job = manifests("rayjob")
    assert (config_map["apiVersion"], config_map["kind"]) == ("v1", "ConfigMap")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec, cluster = job["spec"], job["spec"]["rayClusterSpec"]
    assert set(spec) <= RAY_JOB
    assert set(cluster) == RAY_CLUSTER
    assert cluster["rayVersion"] == version("ray")
    assert cluster["authOptions"] == {"mode": "token"}
    assert set(cluster["headGroupSpec"]) == {"rayStartParams", "template"}
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    (workers,) = cluster["workerGroupSpecs"]
    assert set(workers) == WORKER_GROUP
    for group in (cluster["headGroupSpec"], workers):
        check_pod(group["template"]["spec"])


def test_pods_wait_longer_than_a_job_that_finishes_its_shards() -> None:
    _, job = manifests("rayjob")
    waits = int(yaml.safe_load(job["spec"]["runtimeEnvYAML"])["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"])
    assert waits >= 60
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert group["template"]["spec"]["terminationGracePeriodSeconds"] > waits


def test_workers_follow_the_job() -> None:
    # Six actors tag, and two with three threads each parse for each of them.
    sized = ("executor.actors=6", "executor.threads=3", "executor.gpus=0.5")
    _, job = manifests("rayjob", *(word for setting in sized for word in ("--set", setting)))
    (workers,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (workers["replicas"], workers["minReplicas"], workers["maxReplicas"]) == (6, 6, 6)
    (container,) = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "6", "memory": "8Gi", "nvidia.com/gpu": "1"}
    _, job = manifests("rayjob", "--set", "executor.actors=6", "--set", "executor.threads=3")
    (workers,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "3", "memory": "8Gi"}


def test_the_kubernetes_file_overrides_the_job(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("image: me:1\nworkers: 2\ncpus: 8\ngpus: 4\nmemory: 64Gi\nvolumes: {my-data: /data}\n")
    result = concord("submit", NIGHTLY, "--print", "rayjob", *SHARED, "--kubernetes", settings, "--json")
    _, job = json.loads(result.stdout)["manifests"]
    (workers,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert workers["replicas"] == 2
    assert container["resources"]["limits"] == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "4"}
    assert {"name": "my-data", "mountPath": "/data"} in container["volumeMounts"]


def test_pods_with_several_workers_are_larger(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("image: me:1\nworkers: 2\nvolumes: {my-data: /data}\n")
    sized = ("--set", "executor.actors=6", "--set", "executor.gpus=0.5", "--set", "executor.parse_actors=4")
    result = concord("submit", NIGHTLY, "--print", "rayjob", *SHARED, *sized, "--kubernetes", settings, "--json")
    _, job = json.loads(result.stdout)["manifests"]
    (workers,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "8Gi", "nvidia.com/gpu": "2"}


def test_the_mounted_job_equals_the_submitted_one(tmp_path: Path) -> None:
    config_map, job = manifests("rayjob", "--set", "tagger.samples=2")
    arrived = tmp_path / "nightly.yaml"
    arrived.write_text(config_map["data"]["nightly.yaml"])
    overrides = ["input=/data/news", "output=/data/out", "tagger.samples=2"]
    assert read_annotate_job(arrived) == read_annotate_job(NIGHTLY, overrides=overrides)
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    folder = head["containers"][0]["volumeMounts"][0]["mountPath"]
    assert f" {folder}/nightly.yaml " in job["spec"]["entrypoint"]
    assert head["volumes"][0]["configMap"]["name"] == config_map["metadata"]["name"]


def test_a_cron_job_forbids_overlap_and_submits_under_a_dated_id() -> None:
    _, job = manifests("cronjob")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "CronJob")
    assert set(job["spec"]) <= CRON_JOB
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    run = job["spec"]["jobTemplate"]["spec"]
    pod = run["template"]["spec"]
    check_pod(pod)
    (container,) = pod["containers"]
    # Errors that a retry cannot fix end the job; such a rule needs pods that are never restarted.
    (rule,) = run["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": [2, 3]}
    assert pod["restartPolicy"] == "Never"
    # Without --id, whose default contains the date.
    assert container["command"] == [
        *("concord", "submit", "/etc/concord/nightly.yaml", "--address", "http://concord-head-svc:8265")
    ]
    secret = {"name": "concord", "key": "auth_token"}
    assert container["env"] == [
        {"name": "RAY_AUTH_MODE", "value": "token"},
        {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": secret}},
    ]


def test_without_authentication_no_token_is_used(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("image: me:1\nauth: disabled\nvolumes: {my-data: /data}\n")
    for kind in ("rayjob", "cronjob"):
        result = concord("submit", NIGHTLY, "--print", kind, *SHARED, "--kubernetes", settings)
        assert "RAY_AUTH_TOKEN" not in result.stdout
        assert "disabled" in result.stdout


def test_names_that_kubernetes_does_not_accept_are_replaced(tmp_path: Path) -> None:
    job = tmp_path / "My_Nightly Job.yaml"
    job.write_text("input: /data/in\noutput: /data/out\n")
    config_map, cron_job = manifests("cronjob", job=job)
    assert config_map["metadata"]["name"] == cron_job["metadata"]["name"] == "my-nightly-job"
    assert list(config_map["data"]) == ["my-nightly-job.yaml"]


@pytest.mark.parametrize("setting", ["output=/home/me/out", "parser.directory=/home/me/stanza"])
def test_a_path_that_pods_do_not_share_is_refused(setting: str) -> None:
    result = concord("submit", NIGHTLY, "--print", "rayjob", *SHARED, "--set", setting)
    key, path = setting.split("=")
    assert result.exit_code == 2
    assert f"{key}: expected a URL or a path below one of the volumes" in result.stderr
    assert f"got {path}" in result.stderr


def test_a_store_that_pods_cannot_see_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("submit", NIGHTLY, "--print", "cronjob", *SHARED, "--set", "tagger.model=models:/ner@champion")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////home/me/mlflow.db")
    result = concord(*arguments)
    assert result.exit_code == 2
    assert "set MLFLOW_TRACKING_URI to a server's http address" in result.stderr
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    assert "value: http://mlflow:5000" in concord(*arguments).stdout


@pytest.mark.parametrize("kind", ["rayjob", "cronjob"])
def test_a_local_store_does_not_matter_to_a_bundled_tagger(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////home/me/mlflow.db")
    result = concord("submit", NIGHTLY, "--print", kind, *SHARED)
    assert result.exit_code == 0, result.output
    assert "MLFLOW_TRACKING_URI" not in result.stdout


@pytest.mark.parametrize("kind", ["rayjob", "cronjob"])
def test_no_manifest_holds_a_password(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://anna:secret@mlflow:5000")
    result = concord("submit", NIGHTLY, "--print", kind, *SHARED)
    assert result.exit_code == 2
    assert "MLFLOW_TRACKING_URI: expected an address without a password, got http://mlflow:5000" in result.stderr
    assert "secret" not in result.output


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("image: me:1\nmemry: 8Gi\n", "memry"),
        ("image: me:1\nvolumes: {data: relative}\n", "expected an absolute folder, got 'relative'"),
        ("image: me:1\nvolumes: {My_Data: /data}\n", "expected a claim of lowercase letters"),
    ],
)
def test_a_faulty_kubernetes_file_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(text)
    with pytest.raises(ConfigError, match=fault):
        read_kubernetes(settings)
