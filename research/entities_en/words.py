"""Lists of words that the rules of labels know."""

from pathlib import Path

import yaml

WORDS = {
    name: frozenset[str](words)
    for name, words in yaml.safe_load((Path(__file__).parent / "words.yaml").read_text(encoding="utf-8")).items()
}
