"""Disturb every tenth request to object stores, in runs that write two generations, and compare their bytes.

Command: python benchmarks/bench_store_faults.py

The servers and the faults are those of ``concord_testing.store_servers``. A run has to succeed or to end with a
StoreError (exit code 75), and is then repeated; its output has to have the bytes of an undisturbed run.
"""

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from concord_testing import runs, stores
from concord_testing.store_servers import StoreProxy, azure_server, s3_server, store_proxy
from environment import environment

from concord.models.errors import ConcordError
from concord.pipeline.output.verify import verify
from concord.pipeline.storage.output_paths import output_path

SCHEMES = ("s3", "gs", "az")
RUNS = 5


@contextmanager
def disturbed_bucket(scheme: str) -> Iterator[tuple[str, StoreProxy]]:
    """Yield the URL of an empty bucket and the proxy before its store."""
    server = azure_server() if scheme == "az" else s3_server()
    with (
        server as address,
        store_proxy(address, translate_google=scheme == "gs") as proxy,
        pytest.MonkeyPatch.context() as environment_variables,
    ):
        yield stores.new_bucket(scheme, proxy.url, environment_variables), proxy


def try_seeds(url: str, proxy: StoreProxy, *, seeds: range, folder: Path) -> dict[str, object]:
    """Annotate once undisturbed and once for each seed."""
    expected = _annotate(f"{url}/undisturbed", folder, Counter())
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        proxy.disturb_at_random(seed)
        found = _annotate(f"{url}/{seed}", folder, outcomes)
        proxy.disturb_at_random(None)
        if found != expected or verify(output_path(f"{url}/{seed}")):
            outcomes["other bytes at the end"] += 1
    return {"seeds": len(seeds), "requests": len(proxy.requests), "faults": proxy.disturbed, "runs": outcomes}


def _annotate(output: str, folder: Path, outcomes: Counter[str]) -> list[dict[str, bytes]]:
    """Write two generations; returns the committed files of each."""
    source = runs.write_collection(folder / "in.jsonl", extra=("PARSERFAULT",))
    generations = [source.read_bytes(), source.read_bytes().replace(b"Anna", b"Hanna", 1)]
    found: list[dict[str, bytes]] = []
    for content in generations:
        source.write_bytes(content)
        for _ in range(RUNS):
            try:
                runs.run_job(runs.job(source, output))
            except ConcordError as error:
                outcomes[f"exit code {error.exit_code}"] += 1
            else:
                outcomes["success"] += 1
                break
        found.append(stores.committed(output))
    return found


def main() -> None:
    """Try seeds with each store and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="number of disturbed outputs in each store")
    arguments = parser.parse_args()
    results: dict[str, object] = {}
    for scheme in SCHEMES:
        with disturbed_bucket(scheme) as (url, proxy), tempfile.TemporaryDirectory() as folder:
            results[scheme] = try_seeds(url, proxy, seeds=range(1, arguments.seeds + 1), folder=Path(folder))
    print(json.dumps({**environment("bench_store_faults.py"), "stores": results}, indent=1))


if __name__ == "__main__":
    main()
