"""A tiny encoder with random weights, so that no test needs a pretrained one."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import torch


def write_encoder(folder: Path, pieces: Iterable[str], *, labels: Sequence[str] | None = None) -> Path:
    """Write a BERT of two layers that takes 14 subwords a window, as a Hugging Face folder; return the folder.

    Args:
        pieces: its subwords, lower-cased; those within a word begin with ``##``.
        labels: of a model of token classification; an encoder alone if None.
    """
    transformers = pytest.importorskip("transformers", reason="needs the extra 'hf'")
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]
    (folder / "vocab.txt").write_text("\n".join(known) + "\n", encoding="utf-8")
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(5)
    config = transformers.BertConfig(
        vocab_size=len(known),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
    )
    if labels is None:
        transformers.BertModel(config).save_pretrained(folder)
        return folder
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: number for number, label in enumerate(labels)}
    transformers.BertForTokenClassification(config).save_pretrained(folder)
    return folder
