"""Where the checkout lies."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
