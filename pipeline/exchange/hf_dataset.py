"""Export to a folder that ``datasets.load_dataset`` reads (https://huggingface.co/docs/datasets/repository_structure).

One row a sentence, with its words and the numbers of their labels in BIO2. The header of the dataset card names the
labels; that library is not needed to write it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from concord.models.labels import OUTSIDE
from concord.pipeline.exchange.items import ExportItem
from concord.pipeline.output.document_rows import whole_sentences
from concord.pipeline.storage.atomic_writes import stage_folder, store_errors

_SCHEMA = pa.schema(
    {"doc_id": pa.string(), "sent_id": pa.int32(), "tokens": pa.list_(pa.string()), "ner_tags": pa.list_(pa.int64())}
)
# Rows held in memory, and read at once by most readers.
_GROUP_ROWS = 10_000
_CARD = """---
{header}---

# Entities of an annotated collection

The labels are those of a tagger, except where a person has corrected them. Each row is a sentence: `doc_id` and
`sent_id` say where it comes from, `tokens` are its words and `ner_tags` their labels in BIO2.
"""


def write_hf_dataset(folder: Path, items: Iterable[ExportItem], *, labels: Sequence[str]) -> None:
    """Write a new folder of ``README.md`` and ``train.parquet``, which appears under its name once it is complete.

    Items need no text.

    Args:
        folder: must not exist, or be empty.
        labels: all entity types that may occur.
    """
    names = [OUTSIDE, *(f"{prefix}-{label}" for label in labels for prefix in "BI")]
    rows = _rows(items, {name: number for number, name in enumerate(names)})
    with store_errors(folder), stage_folder(folder) as staged:
        (staged / "README.md").write_text(_CARD.format(header=_header(names)), encoding="utf-8")
        with pq.ParquetWriter(staged / "train.parquet", _SCHEMA, compression="zstd") as writer:
            while group := list(islice(rows, _GROUP_ROWS)):
                writer.write_table(pa.Table.from_pylist(group, _SCHEMA))


def _rows(items: Iterable[ExportItem], numbers: dict[str, int]) -> Iterator[dict[str, Any]]:
    for item in items:
        for pieces in whole_sentences(item.document):
            words = [word for piece in pieces for word in piece.tokens]
            yield {
                "doc_id": item.document.row.doc_id,
                "sent_id": pieces[0].row.sent_id,
                "tokens": [word.word for word in words],
                "ner_tags": [numbers[word.ner] for word in words],
            }


def _header(names: Sequence[str]) -> str:
    class_label = {"class_label": {"names": {str(number): name for number, name in enumerate(names)}}}
    features = [
        {"name": "doc_id", "dtype": "string"},
        {"name": "sent_id", "dtype": "int32"},
        {"name": "tokens", "list": "string"},
        {"name": "ner_tags", "list": class_label},
    ]
    files = [{"split": "train", "path": "train.parquet"}]
    header = {
        "task_categories": ["token-classification"],
        "dataset_info": {"features": features},
        "configs": [{"config_name": "default", "data_files": files}],
    }
    text: str = yaml.safe_dump(header, sort_keys=False, allow_unicode=True)
    return text
