"""The Ray executor: join a cluster or start Ray on this machine, and run shards or hash files there.

``ray_scheduler`` decides which actor does which shard, ``ray_actors`` are the processes that do it; Ray is imported in
these three modules only.
"""

import logging
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from concord.models.errors import ConcordError, ConfigError
from concord.pipeline.config import ExecutorConfig
from concord.pipeline.errors import StoppedError
from concord.pipeline.executors.base import BuildParseWorker, BuildWorker, OnReport, stop_request
from concord.pipeline.executors.ray_actors import ParseActor, ShardActor
from concord.pipeline.executors.ray_auth import resolve_auth_mode
from concord.pipeline.executors.ray_leftovers import leftovers_ended
from concord.pipeline.executors.ray_scheduler import RayScheduler, WorkerRole, cause_of, runtime_env, workers_that_fit
from concord.pipeline.executors.shared_storage import SharedStorage
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.storage.files import file_sha256
from concord.pipeline.worker.build import build_parse_worker, build_worker
from concord.pipeline.worker.shard_progress import OnShardProgress

_CONNECT_SECONDS = 20.0


def run_on_ray(
    plan: Plan,
    shards: Sequence[Shard],
    on_report: OnReport,
    on_progress: OnShardProgress | None = None,
    *,
    config: ExecutorConfig,
    build: BuildWorker = build_worker,
    build_parse: BuildParseWorker = build_parse_worker,
) -> Mapping[str, int]:
    """Run shards on the cluster of ``RAY_ADDRESS``, or on a Ray of its own here; otherwise as ``Executor`` describes.

    Args:
        build, build_parse: build each kind of worker from a plan in its process.

    Raises:
        ConfigError: when the cluster has no room for the workers.
    """
    roles = _roles(plan, config, len(shards), build, build_parse)
    with connected(cpus=max(1, sum(role.count * role.cpus for role in roles))):
        for role in roles:
            _check_room(role)
        # Ray installs its own SIGTERM handler when it starts, so ours is installed afterwards.
        with stop_request(config.drain_seconds) as stop, SharedStorage.of(plan, shards).marked() as storage:
            scheduler = RayScheduler(plan, config, roles, storage)
            try:
                scheduler.run(shards, on_report=on_report, on_progress=on_progress, stop=stop)
            finally:
                scheduler.shutdown()
    return dict(scheduler.replaced)


def _roles(
    plan: Plan, config: ExecutorConfig, shards: int, build: BuildWorker, build_parse: BuildParseWorker
) -> list[WorkerRole]:
    """Return the kinds of workers; no more of each than shards, since each costs a process and its models."""
    worker = WorkerRole(
        count=min(config.actors, shards),
        # An actor with a GPU would otherwise hold a CPU that a parsing worker may be waiting for.
        cpus=0 if config.gpus else plan.threads,
        gpus=config.gpus,
        key="actors",
        actor=ShardActor,
        build=build,
    )
    if not config.parsers:
        return [worker]
    if plan.config.parser.device == "cuda":
        raise ConfigError(
            "executor.parse_actors: workers that only parse hold no GPU, and parser.device is cuda; set "
            "executor.parse_actors=0 to parse where the tagger works, or parser.device=cpu"
        )
    parsers = min(config.parsers, shards)
    parser = WorkerRole(
        count=parsers, cpus=plan.threads, gpus=0, key="parse_actors", actor=ParseActor, build=build_parse
    )
    return [worker, parser]


def hash_files(paths: Sequence[str]) -> list[str]:
    """Hash files in Ray tasks: SHA-256 in hex; joins or starts Ray as the executor does."""
    with connected(cpus=os.cpu_count() or 1):
        hash_file = ray.remote(num_cpus=1, runtime_env=runtime_env(threads=1))(file_sha256)
        try:
            return list(ray.get([hash_file.remote(path) for path in paths]))
        except RayTaskError as error:
            raise cause_of(error, None) from error


@contextmanager
def connected(*, cpus: int) -> Iterator[None]:
    """Join the cluster of ``RAY_ADDRESS``, or start Ray on this machine; what was started is shut down afterwards.

    Args:
        cpus: how many a Ray that is started here offers.

    Raises:
        ConcordError: when the cluster cannot be joined or Ray does not start.
        StoppedError: after a SIGTERM that no other handler took.
    """
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    resolve_auth_mode(address)
    own_folder = None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if not address:
        # Ray's sockets lie below this folder and their paths must stay under 107 bytes: TMPDIR may be too long.
        own_folder = tempfile.mkdtemp(prefix="concord-", dir=os.environ.get("RAY_TMPDIR", "/tmp"))
        options |= {"address": "local", "num_cpus": cpus, "include_dashboard": False, "_temp_dir": own_folder}
    listening = signal.getsignal(signal.SIGTERM)
    with leftovers_ended(own_folder) if own_folder is not None else nullcontext():
        try:
            _init(options, address)
            yield
        except SystemExit as ended:
            # This is what Ray's own handler raises for the signal.
            if ended.code != signal.SIGTERM:
                raise
            raise StoppedError(signal.SIGTERM) from None
        finally:
            ray.shutdown()
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, listening or signal.SIG_DFL)


def _init(options: dict[str, Any], address: str | None) -> None:
    try:
        _check_port(address)
        ray.init(**options)
    except (OSError, RuntimeError, RayError) as error:
        what = f"cannot join the cluster at RAY_ADDRESS={address}" if address else "Ray does not start here"
        raise ConcordError(
            f"{what}: {error}\nRAY_AUTH_MODE is {os.environ['RAY_AUTH_MODE']!r}; it must be that of the cluster. "
            "The same job runs without Ray by --executor local"
        ) from error


def _check_port(address: str | None) -> None:
    """Raise an OSError at once if nothing listens at the address: Ray itself would retry for many minutes."""
    host, colon, port = (address or "").rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()


def _check_room(role: WorkerRole) -> None:
    """Reject more workers than the nodes, even idle, have room for: Ray would wait for them forever.

    Workers with a GPU need no CPU and those that parse for them no GPU, so each kind can be checked by itself.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = sum(workers_that_fit(node, cpus=role.cpus, gpus=role.gpus) for node in nodes)
    if room < role.count:
        have = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes) or "no node"
        raise ConfigError(
            f"executor: {role.count} workers of {role.cpus} CPUs and {role.gpus:g} GPUs do not fit the Ray cluster "
            f"({have}); lower executor.{role.key}, executor.threads or executor.gpus, or add nodes"
        )
