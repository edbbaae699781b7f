"""A job as Kubernetes manifests: a KubeRay RayJob with its own cluster, or a CronJob that submits on a schedule.

The manifests are the templates beside this file; they are printed for ``kubectl apply``, and nothing here connects to
Kubernetes. Fields are those of KubeRay 1.6 (ray.io/v1).
"""

import math
import re
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import Field, field_validator

from concord.models.config import Config
from concord.models.errors import ConfigError
from concord.pipeline.config import AnnotateConfig
from concord.workflows.annotation.job import names_model
from concord.workflows.cluster.package import LOCAL_STORES, STOP_SECONDS, job_yaml, tracking_environment
from concord.workflows.console import Answer
from concord.workflows.yaml_values import read_yaml

Kind = Literal["rayjob", "cronjob"]

JOB_FOLDER = "/etc/concord"
GRACE_SECONDS = STOP_SECONDS + 30
"""A pod gets more time to end than the job in it, which finishes its shards first."""
LONGEST_NAME = 40


class KubernetesConfig(Config):
    """Where a job runs on Kubernetes, such as in conf/kubernetes.yaml."""

    image: str
    """Of every pod; contains Concord, its dependencies and the Ray version that is installed here."""
    volumes: dict[str, str] = Field(default_factory=dict)
    """PersistentVolumeClaim -> mount path on every pod. Input, output and models must be below one of these paths."""
    workers: int | None = Field(default=None, ge=1)
    """Number of worker pods; if null, one per actor of the job (executor.actors)."""
    cpus: int | None = Field(default=None, ge=1)
    """CPUs of a worker pod; if null, executor.threads (else 1) of the job for each of its workers that needs CPUs."""
    gpus: int | None = Field(default=None, ge=0)
    """GPUs of a worker pod; if null, executor.gpus of the job for each of its workers, rounded up."""
    memory: str = "8Gi"
    """Of a worker pod."""
    head_memory: str = "8Gi"
    """Of the head pod, which plans and counts. With half of it, Ray's own processes have failed to start in time."""
    auth: Literal["token", "disabled"] = "token"
    """Ray's authentication. With token, KubeRay creates the token as a Secret named after the cluster."""
    cluster: str = "concord"
    """CronJob: name of the existing RayCluster that runs the job."""
    schedule: str = "15 2 * * *"
    """CronJob: in crontab format."""
    time_zone: str = "Etc/UTC"
    """CronJob: of the schedule."""

    @field_validator("volumes")
    @classmethod
    def _mountable(cls, volumes: dict[str, str]) -> dict[str, str]:
        for claim, folder in volumes.items():
            if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", claim):
                raise ValueError(f"expected a claim of lowercase letters, digits and hyphens, got {claim!r}")
            if not PurePosixPath(folder).is_absolute():
                raise ValueError(f"{claim}: expected an absolute folder, got {folder!r}")
        return volumes


def read_kubernetes(path: Path) -> KubernetesConfig:
    """Read a file such as conf/kubernetes.yaml."""
    return KubernetesConfig.from_mapping(read_yaml(path), where=str(path))


def print_manifests(config: AnnotateConfig, kind: Kind, *, name: str, settings: KubernetesConfig) -> Answer:
    """Return the manifests of a job; characters in its name that Kubernetes does not accept are replaced.

    Raises:
        ConfigError: when pods cannot see the input, the output, a model or MLflow's store, or the address of that store
            holds a password.
    """
    _check_paths(config, settings)
    environment = tracking_environment(config)
    store = environment.get("MLFLOW_TRACKING_URI", "")
    if store.startswith(LOCAL_STORES):
        raise ConfigError(
            f"tagger.model: {config.tagger.model} is looked up in MLflow, and pods cannot see {store}; "
            "set MLFLOW_TRACKING_URI to a server's http address"
        )
    # No HTML escaping: these are YAML.
    templates = Environment(loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined)
    templates.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    text = templates.get_template(f"{kind}.yaml.j2").render(
        **settings.model_dump(exclude={"workers"}),
        **_pods(config, settings),
        name=re.sub(r"[^a-z0-9]+", "-", name.lower())[:LONGEST_NAME].strip("-") or "concord",
        job=job_yaml(config),
        job_folder=JOB_FOLDER,
        grace_seconds=GRACE_SECONDS,
        ray_version=version("ray"),
        environment=environment,
        runtime_env=yaml.safe_dump({"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS), **environment}}),
    )
    head = "\n".join(takewhile(lambda line: line.startswith("#"), text.splitlines()))
    manifests = list(yaml.safe_load_all(text))
    body = yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return Answer(values={"manifests": manifests}, text=f"{head}\n{body}".rstrip("\n"))


def _check_paths(config: AnnotateConfig, settings: KubernetesConfig) -> None:
    """Refuse local paths outside the volumes: each pod would have its own, and lose it."""
    paths = {"input": config.input, "output": config.output.path, "parser.directory": config.parser.directory}
    if names_model(config):
        paths["tagger.model"] = config.tagger.model
    for key, path in paths.items():
        if path is None or not path.startswith("/"):
            continue
        if not any(PurePosixPath(path).is_relative_to(folder) for folder in settings.volumes.values()):
            folders = ", ".join(settings.volumes.values()) or "none"
            raise ConfigError(
                f"{key}: expected a URL or a path below one of the volumes that all pods see ({folders}), got {path}; "
                f"set it by --set {key}=/PATH, or add a volume to the Kubernetes file"
            )


def _pods(config: AnnotateConfig, settings: KubernetesConfig) -> dict[str, Any]:
    """Return the number of worker pods, and the resources of a worker and of the head."""
    executor = config.executor
    workers = settings.workers or executor.actors
    gpus = math.ceil(executor.gpus * math.ceil(executor.actors / workers)) if settings.gpus is None else settings.gpus
    # With GPUs, the actors that parse for the others are the ones that need CPUs.
    on_cpus = executor.parsers or executor.actors
    cpus = settings.cpus or math.ceil(on_cpus / workers) * (executor.threads or 1)
    worker = {"cpu": str(cpus), "memory": settings.memory, **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {
        "workers": workers,
        "worker_resources": worker,
        "head_resources": {"cpu": "1", "memory": settings.head_memory},
    }


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # an untyped library
    """YAML for people: multi-line text as blocks, and no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        """Disable YAML aliases."""
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)
