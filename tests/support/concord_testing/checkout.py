"""Where the checkout is, and how thoroughly it is tested."""

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
# make soak sets it: 400 examples of a property instead of 25, and every attack on a collection.
SOAK = os.environ.get("CONCORD_SOAK", "") == "1"
