"""Read a collection in five ways while another process changes it again and again, and compare every read.

Command: python benchmarks/bench_readers.py

The writer tags with another tagger, changes texts, adds new ones (small shards are merged), and one in three of its
drivers is killed at a random step. A read is right if its rows are exactly those of one generation. Readers that list a
folder through its link and then open the files may find that a file is gone, which is an error and not a wrong row.
"""

import argparse
import json
import tempfile
from pathlib import Path

from concord_testing import readers
from environment import environment


def main() -> None:
    """Read and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reads", type=int, default=10_000)
    parser.add_argument("--documents", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--grace-seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = readers.read_beside_a_writer(
            Path(folder),
            reads=arguments.reads,
            documents=arguments.documents,
            seed=arguments.seed,
            grace_seconds=arguments.grace_seconds,
        )
    print(json.dumps({**environment("bench_readers.py"), "config": vars(arguments), **found}, indent=1))


if __name__ == "__main__":
    main()
