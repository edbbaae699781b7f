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
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from concord.models.errors import ConcordError, ConfigError
from concord.pipeline.config import ExecutorConfig
from concord.pipeline.errors import StoppedError
from concord.pipeline.executors.base import BuildParseWorker, BuildWorker, OnReport, stop_request
from concord.pipeline.executors.ray_actors import ParseActor, ShardActor, SharedStorage
from concord.pipeline.executors.ray_scheduler import RayScheduler, WorkerRole, cause_of, runtime_env, workers_that_fit
from concord.pipeline.executors.ray_setup import leftovers_ended, resolve_auth_mode
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.resources import usable_cores
from concord.pipeline.storage.atomic_writes import store_errors
from concord.pipeline.storage.files import file_sha256
from concord.pipeline.worker.build import build_parse_worker, build_worker
from concord.pipeline.worker.shard_progress import OnShardProgress

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 20.0
_PARSERS_FOR_A_GPU_WORKER = 3
"""Of a worker with a GPU, a word took 21 to 28 microseconds of its CPU, to tag and to write; parsing it took 81."""


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
    _check_parsing(plan, config)
    with connected(cpus=_cpus_here(plan, config, len(shards))):
        nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        roles = choose_roles(plan, config, len(shards), nodes, build=build, build_parse=build_parse)
        # Ray installs its own SIGTERM handler when it starts, so ours is installed afterwards.
        with stop_request(config.drain_seconds) as stop, SharedStorage.of(plan, shards).marked() as storage:
            scheduler = RayScheduler(plan, config, roles, storage)
            try:
                scheduler.run(shards, on_report=on_report, on_progress=on_progress, stop=stop)
            finally:
                scheduler.shutdown()
    return dict(scheduler.replaced)


def _check_parsing(plan: Plan, config: ExecutorConfig) -> None:
    """Refuse workers that only parse where they would help nobody, or have no GPU that they need."""
    if not config.gpu_share(plan.config.tagger.device):
        if config.parse_actors:
            raise ConfigError(
                "executor.parse_actors: expected null where workers hold no GPU and parse for themselves, got "
                f"{config.parse_actors}; set tagger.device=cuda or executor.gpus, or raise executor.actors instead"
            )
    elif config.parse_actors != 0 and plan.config.parser.device == "cuda":
        raise ConfigError(
            "executor.parse_actors: workers that only parse hold no GPU, and parser.device is cuda; set "
            "executor.parse_actors=0 to parse where the tagger works, or parser.device=cpu"
        )


def _cpus_here(plan: Plan, config: ExecutorConfig, shards: int) -> int:
    """Return the CPUs that a Ray of this machine offers: those of the workers; where they are to be chosen, all."""
    device = plan.config.tagger.device
    asked = min(config.num_actors(device) or 0, shards) * plan.threads + min(config.parse_actors or 0, shards)
    return max(asked, usable_cores()) if config.gpu_share(device) else asked


def choose_roles(
    plan: Plan,
    config: ExecutorConfig,
    shards: int,
    nodes: Mapping[str, Mapping[str, float]],
    *,
    build: BuildWorker,
    build_parse: BuildParseWorker,
) -> list[WorkerRole]:
    """Return the kinds of workers, in numbers that the nodes, if idle, have room for; no CPU or GPU is given twice.

    There are no more of each kind than shards, since each costs a process and its models.

    Args:
        nodes: the resources of each node, by its id.

    Raises:
        ConfigError: when there is no room for the numbers of the configuration. Ray would wait for it forever.
    """
    device = plan.config.tagger.device
    gpus, actors = config.gpu_share(device), config.num_actors(device)
    free = {node: dict(resources) for node, resources in nodes.items()}
    worker = WorkerRole(count=shards, cpus=plan.threads, gpus=gpus, key="actors", actor=ShardActor, build=build)
    leaves_room = actors is None and config.parse_actors != 0
    worker = _placed(worker, actors, free, beside=_PARSERS_FOR_A_GPU_WORKER if leaves_room else 0)
    if not gpus:
        return [replace(worker, nodes=())]
    parser = WorkerRole(count=shards, cpus=1, gpus=0, key="parse_actors", actor=ParseActor, build=build_parse)
    parser = _placed(parser, config.parse_actors, free)
    logger.info(
        "executor.actors=%d with %g GPUs and %d CPUs each, executor.parse_actors=%d with 1 CPU each",
        *(worker.count, worker.gpus, worker.cpus, parser.count),
    )
    return [worker, parser] if parser.count else [worker]


def _placed(
    role: WorkerRole, count: int | None, free: Mapping[str, dict[str, float]], *, beside: int = 0
) -> WorkerRole:
    """Return the role with its workers on nodes that take turns, and take what they hold from what is free.

    Args:
        role: with as many workers as are of use.
        count: how many are asked for; if None, as many as there is room for.
        beside: CPUs to leave for each, unless it is the only one of its node.
    """
    rooms = {
        node: min(
            workers_that_fit(resources, cpus=role.cpus, gpus=role.gpus),
            max(1, workers_that_fit(resources, cpus=role.cpus + beside, gpus=0)),
        )
        for node, resources in free.items()
    }
    turns = (node for turn in range(max(rooms.values(), default=0)) for node, room in rooms.items() if room > turn)
    nodes = tuple(islice(turns, role.count if count is None else min(count, role.count)))
    # Those that tag may parse for themselves.
    needed = min(role.count, count if count is not None else int(role.gpus > 0))
    if len(nodes) < needed:
        have = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in free.values())
        left = "left by executor.actors: " if role.actor is ParseActor else ""
        raise ConfigError(
            f"executor: {needed} workers of {role.cpus} CPUs and {role.gpus:g} GPUs do not fit the Ray cluster "
            f"({left}{have or 'no node'}); lower executor.{role.key}, executor.threads or executor.gpus, or add nodes"
            f"{', or set tagger.device=cpu' if role.gpus else ''}"
        )
    for node in nodes:
        free[node]["CPU"] -= role.cpus
        free[node]["GPU"] = free[node].get("GPU", 0) - role.gpus
    return replace(role, count=len(nodes), nodes=nodes)


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
        place = Path(os.environ.get("RAY_TMPDIR", "/tmp"))
        with store_errors(place):
            own_folder = tempfile.mkdtemp(prefix="concord-", dir=place)
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
