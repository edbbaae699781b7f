"""The Ray executor: join a cluster or start Ray on this machine, and run shards there.

``ray_actors`` are the processes that do the work; Ray is imported in these two modules only.
"""

import logging
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from concord.models.errors import ConcordError, ConfigError
from concord.pipeline.config import ExecutorConfig
from concord.pipeline.errors import StoppedError
from concord.pipeline.executors.base import OnReport, stop_request
from concord.pipeline.executors.ray_actors import ShardActors
from concord.pipeline.executors.ray_setup import leftovers_ended, resolve_auth_mode
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.resources import usable_cores
from concord.pipeline.storage.atomic_writes import store_errors
from concord.pipeline.worker.shard_progress import OnShardProgress
from concord.pipeline.worker.shard_worker import BuildWorker, build_worker

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 20.0


def run_on_ray(
    plan: Plan,
    shards: Sequence[Shard],
    on_report: OnReport,
    on_progress: OnShardProgress,
    *,
    config: ExecutorConfig,
    build: BuildWorker = build_worker,
) -> None:
    """Run shards on the cluster of ``RAY_ADDRESS``, or on a Ray of its own here; otherwise as ``Executor`` describes.

    Args:
        build: builds a worker from a plan in its process.

    Raises:
        ConfigError: when the cluster has no room for the workers.
    """
    with connected(cpus=_cpus_here(plan, config, len(shards))):
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        count = choose_workers(plan, config, len(shards), nodes)
        # Ray installs its own SIGTERM handler when it starts, so ours is installed afterwards.
        with stop_request(config.drain_seconds) as stop:
            actors = ShardActors(plan, config, count=count, build=build)
            try:
                actors.run(shards, on_report=on_report, on_progress=on_progress, stop=stop)
            finally:
                actors.shutdown()


def _cpus_here(plan: Plan, config: ExecutorConfig, shards: int) -> int:
    """Return the CPUs that a Ray of this machine offers: those of the workers; where they are to be chosen, all."""
    device = plan.config.tagger.device
    asked = min(config.num_actors(device) or 0, shards) * plan.threads
    return max(asked, usable_cores()) if config.gpu_share(device) else asked


def choose_workers(plan: Plan, config: ExecutorConfig, shards: int, nodes: Sequence[Mapping[str, float]]) -> int:
    """Return how many workers there are: as the job says, or else as many as the GPUs of idle nodes have room for.

    There are no more than shards, since each costs a process and its models.

    Args:
        nodes: the resources of each node.

    Raises:
        ConfigError: when there is no room for the number of the configuration. Ray would wait for it forever.
    """
    cpus, gpus = plan.threads, config.gpu_share(plan.config.tagger.device)
    asked = config.num_actors(plan.config.tagger.device)
    room = sum(workers_that_fit(resources, cpus=cpus, gpus=gpus) for resources in nodes)
    count = min(shards, asked or room or 1)
    if room < count:
        have = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
        raise ConfigError(
            f"executor: {count} workers of {cpus} CPUs and {gpus:g} GPUs do not fit the Ray cluster "
            f"({have or 'no node'}); lower executor.actors, executor.threads or executor.gpus, or add nodes"
            f"{', or set tagger.device=cpu' if gpus else ''}"
        )
    if gpus:
        logger.info("executor.actors=%d with %g GPUs and %d CPUs each", count, gpus, cpus)
    return count


def workers_that_fit(resources: Mapping[str, float], *, cpus: int, gpus: float) -> int:
    """Return how many workers a node has room for, given its resources; a share of a GPU is of one device."""
    room, devices = int(resources.get("CPU", 0) // cpus), int(resources.get("GPU", 0))
    if not gpus:
        return room
    return min(room, devices * int(1 / gpus) if gpus < 1 else devices // int(gpus))


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
