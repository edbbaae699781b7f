"""The twelve documents of examples/languages, as a finished run that has found their gold entities."""

import json
from pathlib import Path

from concord.pipeline.corpora.conll import misc_values
from concord_testing import finished_runs
from concord_testing.checkout import CHECKOUT

FOLDER = CHECKOUT / "examples" / "languages"
GOLD = FOLDER / "gold.conllu"


def records() -> dict[str, dict[str, str]]:
    """Return the records of the collection by their ids."""
    lines = (FOLDER / "languages.jsonl").read_text(encoding="utf-8").splitlines()
    return {record["id"]: record for record in map(json.loads, lines)}


def gold_sentences() -> dict[str, list[str]]:
    """Return the gold sentences of each document, as ``write_run`` reads them."""
    found: dict[str, list[str]] = {}
    for line in GOLD.read_text(encoding="utf-8").splitlines():
        if line.startswith("# newdoc id = "):
            sentences = found.setdefault(line.removeprefix("# newdoc id = "), [])
        elif line.startswith("# sent_id"):
            words: list[str] = []
            mark = ""
        elif line and not line.startswith("#"):
            columns = line.split("\t")
            misc = misc_values(columns[9])
            words.append(f"{mark}{columns[1]}|{misc.get('NER', 'O')}")
            mark = "~" if misc.get("SpaceAfter") == "No" else ""
        elif not line:
            sentences.append(" ".join(words))
    return found


def write_languages(output: Path) -> Path:
    """Write the run, with the texts; each text is its sentences with a space between them."""
    metas = {doc_id: {name: record[name] for name in ("title", "date")} for doc_id, record in records().items()}
    return finished_runs.write_run(output, gold_sentences(), metas=metas, keep_text=True, documents_per_shard=5)
