"""Export to a folder that ``datasets.load_dataset`` reads (https://huggingface.co/docs/datasets/repository_structure).

One row a sentence, with its words and the numbers of their labels in BIO2, which the header of the card names.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import orjson
import yaml

from concord.models.labels import OUTSIDE
from concord.pipeline.exchange.items import ExportItem
from concord.pipeline.output.collection import whole_sentences
from concord.pipeline.storage.atomic_writes import stage_folder, store_errors

_CARD = """---
task_categories: [token-classification]
configs:
- config_name: default
  data_files: [{{split: train, path: train.jsonl}}]
dataset_info:
  features:
  - {{name: doc_id, dtype: string}}
  - {{name: sent_id, dtype: int32}}
  - {{name: tokens, list: string}}
  - {{name: ner_tags, list: {{class_label: {{names: {names}}}}}}}
---

The labels are those of a tagger, except where a person has corrected them.
"""


def write_hf_dataset(folder: Path, items: Iterable[ExportItem], *, labels: Sequence[str]) -> None:
    """Write a new folder, which appears under its name once it is complete; ``labels`` are all types that may occur."""
    names = [OUTSIDE, *(f"{prefix}-{label}" for label in labels for prefix in "BI")]
    numbers = {name: number for number, name in enumerate(names)}
    shown = yaml.safe_dump({str(number): name for name, number in numbers.items()}, default_flow_style=True)
    with store_errors(folder), stage_folder(folder) as staged:
        (staged / "README.md").write_text(_CARD.format(names=shown.strip()), encoding="utf-8")
        with (staged / "train.jsonl").open("xb") as stream:
            stream.writelines(_lines(items, numbers))


def _lines(items: Iterable[ExportItem], numbers: Mapping[str, int]) -> Iterator[bytes]:
    for item in items:
        for pieces in whole_sentences(item.document):
            words = [word for piece in pieces for word in piece.tokens]
            row = {
                "doc_id": item.document.row.doc_id,
                "sent_id": pieces[0].row.sent_id,
                "tokens": [word.word for word in words],
                "ner_tags": [numbers[word.ner] for word in words],
            }
            yield orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
