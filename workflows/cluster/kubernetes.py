"""A job as manifests for Kubernetes: a KubeRay RayJob with a cluster of its own, or a CronJob that submits every night.

Nothing here talks to a Kubernetes; the manifests go to ``kubectl apply``. Fields are those of KubeRay 1.6 (ray.io/v1).
"""

import math
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import yaml
from pydantic import Field, field_validator

from concord.models.config import Config, ConfigError
from concord.pipeline.config import AnnotateConfig
from concord.workflows.cluster.package import STOP_SECONDS, job_yaml, tracking_environment
from concord.workflows.console import Answer
from concord.workflows.jobs import names_model, read_yaml

Kind = Literal["rayjob", "cronjob"]

JOB_FOLDER = "/etc/concord"
GRACE_SECONDS = STOP_SECONDS + 30
"""A pod that is to end gets more time than the job in it, which finishes its shards first."""
_LONGEST_NAME = 40
_SUBMITTER = "submit"
# A faulty configuration, or too many dead letters: another try would end alike.
_FINAL = {
    "action": "FailJob",
    "onExitCodes": {"containerName": _SUBMITTER, "operator": "In", "values": [2, 3]},
}
_HEADS: dict[Kind, str] = {
    "rayjob": """\
# One run of a job on a Ray cluster that is made for it and goes afterwards. Start it once more with
# 'kubectl replace --force -f FILE': what is committed is not done again.
""",
    "cronjob": """\
# Submits a job to a Ray cluster that stands, at every tick under an id with the day's date.
#
# Not a RayCronJob: it is alpha and switched off by default, has no concurrencyPolicy, and after an outage of its
# operator starts a run for every tick that was missed. A CronJob forbids overlap, starts at most one run late, and a
# second submission of the same night follows the first.
""",
}


class KubernetesConfig(Config):
    """Where a job runs on Kubernetes; one file, conf/kubernetes.yaml as a rule."""

    image: str
    """Holds Concord with all it needs, and the same Ray as here; on every pod."""
    volumes: dict[str, str] = Field(default_factory=dict)
    """PersistentVolumeClaim -> the folder that it is on every pod; input, output and models lie below one of them."""
    workers: int | None = Field(default=None, ge=1)
    """Worker pods; one for each of the job's executor.actors if none."""
    cpus: int | None = Field(default=None, ge=1)
    """CPUs of a worker pod; executor.threads (else 1) of the job for each worker that needs CPUs if none."""
    gpus: int | None = Field(default=None, ge=0)
    """GPUs of a worker pod; executor.gpus of the job for each worker that holds some, rounded up, if none."""
    memory: str = "8Gi"
    """Of a worker pod."""
    head_memory: str = "8Gi"
    """Of the head, which plans and counts; with half of it Ray's own processes have failed to start in time."""
    auth: Literal["token", "disabled"] = "token"
    """Ray's authentication. With token KubeRay makes the token, a Secret with the cluster's name."""
    cluster: str = "concord"
    """CronJob: the name of the RayCluster that stands and takes the job."""
    schedule: str = "15 2 * * *"
    """CronJob: when, as in crontab."""
    time_zone: str = "Etc/UTC"
    """CronJob: of the schedule."""

    @field_validator("volumes")
    @classmethod
    def _mountable(cls, volumes: dict[str, str]) -> dict[str, str]:
        for claim, folder in volumes.items():
            if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", claim):
                raise ValueError(f"expected a claim of small letters, digits and hyphens, got {claim!r}")
            if not PurePosixPath(folder).is_absolute():
                raise ValueError(f"{claim}: expected an absolute folder, got {folder!r}")
        return volumes


def read_kubernetes(path: Path) -> KubernetesConfig:
    """Read a file that says where jobs run on Kubernetes.

    Raises:
        ConfigError: naming the file and the key.
    """
    return KubernetesConfig.from_mapping(read_yaml(path), where=str(path))


def print_manifests(config: AnnotateConfig, kind: Kind, *, name: str, place: KubernetesConfig) -> Answer:
    """Give the manifests of a job.

    Args:
        name: of the job; letters that Kubernetes does not take are replaced.

    Raises:
        ConfigError: when input, output, a model or MLflow's store lies where pods cannot see it, or the store's address
            holds a password.
    """
    _check_shared(config, place)
    _check_store(config)
    name = _resource_name(name)
    make = {"rayjob": _ray_job, "cronjob": _cron_job}[kind]
    documents = [_config_map(config, name), make(config, name, place)]
    text = _HEADS[kind] + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return Answer(values={"manifests": documents}, text=text.rstrip("\n"))


def _check_shared(config: AnnotateConfig, place: KubernetesConfig) -> None:
    """Refuse a place that each pod would have for itself, and lose."""
    places = {"input": config.input, "output": config.output, "parser.directory": config.parser.directory}
    if names_model(config):
        places["tagger.model"] = config.tagger.model
    for key, path in places.items():
        if path is None or not path.startswith("/"):
            continue
        if not any(PurePosixPath(path).is_relative_to(folder) for folder in place.volumes.values()):
            folders = ", ".join(place.volumes.values()) or "none"
            raise ConfigError(
                f"{key}: expected a URL or a path below one of the volumes that all pods see ({folders}), got {path}; "
                f"set it by --set {key}=/PATH, or add a volume to the Kubernetes file"
            )


def _check_store(config: AnnotateConfig) -> None:
    uri = tracking_environment(config).get("MLFLOW_TRACKING_URI", "")
    if uri.startswith(("sqlite:", "file:")):
        raise ConfigError(
            f"tagger.model: {config.tagger.model} is looked up in MLflow, and pods cannot see {uri}; "
            "set MLFLOW_TRACKING_URI to a server's http address"
        )


def _resource_name(name: str) -> str:
    cleaned = re.sub(r"[^a-z0-9]+", "-", name.lower())[:_LONGEST_NAME].strip("-")
    return cleaned or "concord"


def _config_map(config: AnnotateConfig, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {_job_file(name): job_yaml(config)},
    }


def _job_file(name: str) -> str:
    return f"{name}.yaml"


def _ray_job(config: AnnotateConfig, name: str, place: KubernetesConfig) -> dict[str, Any]:
    executor = config.executor
    workers = place.workers or executor.actors
    gpus = math.ceil(executor.gpus * math.ceil(executor.actors / workers)) if place.gpus is None else place.gpus
    # Where workers hold GPUs, it is those that parse for them who need the CPUs.
    on_cpus = executor.parsers or executor.actors
    cpus = place.cpus or math.ceil(on_cpus / workers) * (executor.threads or 1)
    environment = {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS), **tracking_environment(config)}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name},
        "spec": {
            "entrypoint": f"exec concord annotate {JOB_FOLDER}/{_job_file(name)} --executor ray --json",
            # Every retry is a new cluster; what the one before has committed is not done again.
            "backoffLimit": 2,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "runtimeEnvYAML": yaml.safe_dump({"env_vars": environment}),
            "rayClusterSpec": {
                "rayVersion": version("ray"),
                "authOptions": {"mode": place.auth},
                "headGroupSpec": {
                    # No worker on the head: it is the one pod whose death ends the run.
                    "rayStartParams": {"num-cpus": "0"},
                    "template": _pod(place, name, "ray-head", cpus=1, gpus=0, memory=place.head_memory),
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "workers",
                        "replicas": workers,
                        "minReplicas": workers,
                        "maxReplicas": workers,
                        "rayStartParams": {},
                        "template": _pod(place, name, "ray-worker", cpus=cpus, gpus=gpus, memory=place.memory),
                    }
                ],
            },
        },
    }


def _pod(place: KubernetesConfig, name: str, container: str, *, cpus: int, gpus: int, memory: str) -> dict[str, Any]:
    # Requests equal to limits: a pod is not ended because a neighbour needs the memory.
    resources = {"cpu": str(cpus), "memory": memory, **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    mounts = [{"name": claim, "mountPath": folder} for claim, folder in place.volumes.items()]
    volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in place.volumes]
    return {
        "spec": {
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "containers": [
                {
                    "name": container,
                    "image": place.image,
                    "env": [{"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}],
                    "resources": {"requests": resources, "limits": resources},
                    "volumeMounts": [_job_mount(), *mounts],
                }
            ],
            "volumes": [_job_volume(name), *volumes],
        }
    }


def _cron_job(config: AnnotateConfig, name: str, place: KubernetesConfig) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": name},
        "spec": {
            "schedule": place.schedule,
            "timeZone": place.time_zone,
            "concurrencyPolicy": "Forbid",
            # After an outage the night's run starts late, but not at noon.
            "startingDeadlineSeconds": 4 * 3600,
            "successfulJobsHistoryLimit": 3,
            "failedJobsHistoryLimit": 3,
            "jobTemplate": {
                "spec": {
                    "backoffLimit": 2,
                    "podFailurePolicy": {"rules": [_FINAL]},
                    "template": {"spec": _submitter(config, name, place)},
                }
            },
        },
    }


def _submitter(config: AnnotateConfig, name: str, place: KubernetesConfig) -> dict[str, Any]:
    """Give the pod that submits and follows; when it dies, the job goes on, and the next one follows it."""
    environment: list[dict[str, Any]] = [{"name": "RAY_AUTH_MODE", "value": place.auth}]
    if place.auth == "token":
        token = {"secretKeyRef": {"name": place.cluster, "key": "auth_token"}}
        environment.append({"name": "RAY_AUTH_TOKEN", "valueFrom": token})
    environment.extend({"name": key, "value": value} for key, value in tracking_environment(config).items())
    resources = {"cpu": "500m", "memory": "2Gi"}
    return {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": _SUBMITTER,
                "image": place.image,
                "command": _submit_command(name, place),
                "env": environment,
                "resources": {"requests": resources, "limits": resources},
                "volumeMounts": [_job_mount()],
            }
        ],
        "volumes": [_job_volume(name)],
    }


def _submit_command(name: str, place: KubernetesConfig) -> Sequence[str]:
    # Without --id: the id is made of job, day and content, so a pod that is tried again finds what it has sent.
    address = f"http://{place.cluster}-head-svc:8265"
    return ["concord", "submit", f"{JOB_FOLDER}/{_job_file(name)}", "--address", address]


def _job_mount() -> dict[str, str]:
    return {"name": "concord-job", "mountPath": JOB_FOLDER}


def _job_volume(name: str) -> dict[str, Any]:
    return {"name": "concord-job", "configMap": {"name": name}}


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # an untyped library
    """YAML for people: text of several lines as such, and no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        """Write what stands twice twice."""
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
