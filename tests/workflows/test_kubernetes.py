"""The templates of examples/kubernetes, filled in: only existing fields, and the settings that a run needs."""

import re
from importlib.metadata import version
from string import Template
from typing import Any

import pytest
import yaml
from concord_testing.checkout import CHECKOUT

from concord.workflows.submit import STOP_SECONDS

TEMPLATES = CHECKOUT / "examples" / "kubernetes"

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


def fill_in(kind: str, **values: str) -> dict[str, Any]:
    """Fill a template in with the values that its head suggests, or others, as ``envsubst`` does."""
    text = (TEMPLATES / f"{kind}.yaml").read_text(encoding="utf-8")
    (exports,) = re.findall(r"^# +export (.+)$", text, re.MULTILINE)
    suggested = {name: value.strip('"') for name, value in re.findall(r'(\w+)=("[^"]*"|\S+)', exports)}
    manifest: dict[str, Any] = yaml.safe_load(Template(text).substitute(suggested | values))
    return manifest


def check_pod(pod: dict[str, Any]) -> None:
    assert set(pod) <= POD
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in pod["containers"]:
        assert set(container) <= CONTAINER
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_a_ray_job_has_known_fields_and_the_installed_ray_version() -> None:
    job = fill_in("rayjob", WORKERS="6", CPUS="3", CLAIM="my-data", FOLDER="/texts")
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
    assert (workers["replicas"], workers["minReplicas"], workers["maxReplicas"]) == (6, 6, 6)
    waits = int(yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"])
    assert waits == STOP_SECONDS
    for group in (cluster["headGroupSpec"], workers):
        pod = group["template"]["spec"]
        check_pod(pod)
        assert {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"} in pod["containers"][0]["env"]
        # Pods wait longer than a job that finishes its shards.
        assert pod["terminationGracePeriodSeconds"] > waits
        assert {"name": "data", "mountPath": "/texts"} in pod["containers"][0]["volumeMounts"]
        assert pod["volumes"][1]["persistentVolumeClaim"] == {"claimName": "my-data"}
        assert f" {pod['containers'][0]['volumeMounts'][0]['mountPath']}/job.yaml " in spec["entrypoint"]
    assert workers["template"]["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "3", "memory": "8Gi"}


def test_a_cron_job_forbids_overlap_and_submits_under_a_default_id() -> None:
    job = fill_in("cronjob", CLUSTER="mine")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "CronJob")
    assert set(job["spec"]) <= CRON_JOB
    assert job["spec"]["schedule"] == "15 2 * * *"
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
    # Without --id, so that a second submission follows a running one.
    assert container["command"] == [
        *("concord", "submit", "/etc/concord/job.yaml", "--address", "http://mine-head-svc:8265")
    ]
    secret = {"name": "mine", "key": "auth_token"}
    assert container["env"] == [
        {"name": "RAY_AUTH_MODE", "value": "token"},
        {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": secret}},
    ]


@pytest.mark.parametrize("kind", ["rayjob", "cronjob"])
def test_every_variable_of_a_template_is_explained(kind: str) -> None:
    text = (TEMPLATES / f"{kind}.yaml").read_text(encoding="utf-8")
    used = set(re.findall(r"\$\{(\w+)\}", text))
    assert used == set(re.findall(r"^# ([A-Z_]+)  +\w", text, re.MULTILINE))
