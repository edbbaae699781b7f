"""The tokenizer of Stanza 1.15 on windows of paragraphs: characters to labels.

On a CPU a tokenizer of two LSTMs reads many windows at once, the long ones in pieces side by side
(``packed_sentences``); any other is run as it is. The labels are those of Stanza's own network over the same windows.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from concord.models.data.outputs import OnBatch
from concord.pipeline.parsing.packed_sentences import Pieces, PiecewiseLSTM
from concord.pipeline.parsing.tokens import MULTI_WORD_END, SENTENCE_END, TOKEN_END, Paragraph, window_cut

# Characters. A longer paragraph is tokenized in windows; the last _WINDOW_CONTEXT characters of each are read again
# by the next. Memory grows by about 4 kB per character.
_WINDOW = 20_000
_WINDOW_CONTEXT = 1_000
# Small batches win where Stanza's network runs on a CPU (caches, padding), large ones on a GPU.
_BATCH_PARAGRAPHS = {"cpu": 16, "cuda": 128}
# Characters that pieces of LSTMs read side by side; they take about 3 kB each.
_BATCH_CHARACTERS = 40_000
# Characters that each LSTM of the bundled package needs at most to forget what was before, in each direction. Other
# packages may need more: then more pieces are read again.
_WARM_UPS = ((200, 400), (100, 800))


class _Window(NamedTuple):
    """Characters ``start`` to ``end`` of the paragraph with a number."""

    paragraph: int
    start: int
    end: int


class TokenizerNetwork:
    """The tokenizer, given as Stanza's trainer."""

    def __init__(self, trainer: Any, device: torch.device) -> None:
        self._network = network = trainer.model
        self._device = device
        self._characters = _CharacterTable(trainer)
        self._batch_paragraphs = _BATCH_PARAGRAPHS[device.type]
        self._lstms: list[PiecewiseLSTM] = []
        if device.type == "cpu" and torch.backends.mkldnn.is_available() and _reads_by_two_lstms(network):
            lstms = (network.rnn, network.rnn2)
            self._lstms = [PiecewiseLSTM(lstm, warm_up=steps) for lstm, steps in zip(lstms, _WARM_UPS, strict=True)]

    def label(self, paragraphs: Sequence[Paragraph], on_batch: OnBatch | None) -> list[NDArray[np.int8]]:
        """Return the label of each character of each paragraph, in rounds of one window per paragraph."""
        labels = [np.zeros(len(paragraph.characters), dtype=np.int8) for paragraph in paragraphs]
        starts = dict.fromkeys(range(len(paragraphs)), 0)
        while starts:
            windows = [
                _Window(index, start, min(start + _WINDOW, len(labels[index]))) for index, start in starts.items()
            ]
            starts = {}
            for batch in self._batches(windows):
                if on_batch is not None:
                    on_batch(0, 0)
                for window, found in zip(batch, self._label_windows(paragraphs, batch), strict=True):
                    characters = paragraphs[window.paragraph].characters
                    cut = window.end
                    if window.end < len(characters):
                        safe = _WINDOW - _WINDOW_CONTEXT
                        cut = window_cut(characters, found, start=window.start, safe=safe)
                        starts[window.paragraph] = cut
                    labels[window.paragraph][window.start : cut] = found[: cut - window.start]
        return labels

    def _batches(self, windows: Sequence[_Window]) -> Iterator[list[_Window]]:
        """Split windows into batches, the longest first; for Stanza's own network by characters with padding."""
        room = _BATCH_CHARACTERS if self._lstms else _WINDOW * self._batch_paragraphs // _BATCH_PARAGRAPHS["cpu"]
        batch: list[_Window] = []
        characters = 0
        for window in sorted(windows, key=lambda window: window.start - window.end):
            length = window.end - window.start
            if not self._lstms and batch:
                length = batch[0].end - batch[0].start
            is_full = not self._lstms and len(batch) == self._batch_paragraphs
            if batch and (is_full or characters + length > room):
                yield batch
                batch, characters, length = [], 0, window.end - window.start
            batch.append(window)
            characters += length
        if batch:
            yield batch

    def _label_windows(self, paragraphs: Sequence[Paragraph], windows: Sequence[_Window]) -> list[NDArray[np.int64]]:
        """Label the characters of one batch of windows, the longest first."""
        read = [self._read(paragraphs[window.paragraph].characters, window) for window in windows]
        lengths = [len(units) for units, _ in read]
        units = torch.from_numpy(np.concatenate([units for units, _ in read]))
        features = torch.from_numpy(np.concatenate([features for _, features in read]))
        if self._lstms:
            labels = self._label_in_pieces(units, features, lengths)
        else:
            raw = [
                [*paragraphs[window.paragraph].characters[window.start : window.end], "<PAD>"]
                for window in windows
                if self._network.charmodel is not None
            ]
            labels = self._label_padded(units, features, lengths, raw)
        return [row[:-1] for row in np.split(labels, np.cumsum(lengths)[:-1])]

    def _read(self, characters: str, window: _Window) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return units and features of a window and of the padding that Stanza's network needs after it."""
        units, features = self._characters.look_up(
            characters[window.start : window.end], opens=window.start == 0, closes=window.end == len(characters)
        )
        return np.append(units, self._characters.padding), np.append(features, np.zeros_like(features[:1]), 0)

    def _label_in_pieces(self, units: Tensor, features: Tensor, lengths: Sequence[int]) -> NDArray[np.int64]:
        """Return the label of each unit, shape ``(N,)``; what Stanza's network computes, without padding."""
        network, pieces = self._network, Pieces(lengths)
        names = ["tok", "sent", "mwt"] if network.args["use_mwt"] else ["tok", "sent"]
        weight, bias, second = (
            torch.cat([getattr(getattr(network, f"{name}_{kind}"), part) for name in names])
            for kind, part in (("clf", "weight"), ("clf", "bias"), ("clf2", "weight"))
        )
        states = self._lstms[0].run(torch.cat([network.embeddings(units), features], 1), pieces)
        scores = torch.addmm(bias, states, weight.T)
        if network.args["hier_invtemp"] > 0:
            states = states * torch.sigmoid(scores[:, :1] * network.args["hier_invtemp"])
        scores += self._lstms[1].run(states, pieces) @ second.T
        is_end = scores[:, 0] + functional.logsigmoid(scores[:, 1:].abs()).sum(1) > 0
        label = TOKEN_END + (SENTENCE_END - TOKEN_END) * (scores[:, 1] > 0)
        if network.args["use_mwt"]:
            label = label + (MULTI_WORD_END - TOKEN_END) * (scores[:, 2] > 0)
        labels: NDArray[np.int64] = torch.where(is_end, label, 0).numpy()
        return labels

    def _label_padded(
        self, units: Tensor, features: Tensor, lengths: Sequence[int], raw: Sequence[Sequence[str]]
    ) -> NDArray[np.int64]:
        """Return the label of each unit, shape ``(N,)``, as Stanza's network finds it."""
        padded_units = torch.nn.utils.rnn.pad_sequence(
            list(units.split(list(lengths))), batch_first=True, padding_value=self._characters.padding
        )
        padded_features = torch.nn.utils.rnn.pad_sequence(list(features.split(list(lengths))), batch_first=True)
        scores = self._network(padded_units.to(self._device), padded_features.to(self._device), lengths, raw)
        labels = np.argmax(scores.cpu().numpy(), axis=2)
        return np.concatenate([labels[row, :length] for row, length in enumerate(lengths)])


def _reads_by_two_lstms(network: Any) -> bool:
    """Return whether a network is one LSTM over characters, and another over its states."""
    options = network.args
    return (
        network.charmodel is None
        and options["conv_res"] is None
        and bool(options["hierarchical"])
        and options["rnn_layers"] == 1
    )


class _CharacterTable:
    """The tokenizer's unit and features of each code point, computed when it first occurs; at most 0x110000 rows."""

    def __init__(self, trainer: Any) -> None:
        from stanza.models.tokenization.data import PER_CHAR_FEAT_FUNCS, STRUCTURAL_FEATURES

        wanted = trainer.args["feat_funcs"]
        self._vocabulary = trainer.vocab
        self._functions = [PER_CHAR_FEAT_FUNCS[name] for name in wanted if name in PER_CHAR_FEAT_FUNCS]
        self._positions = [name for name in ("end_of_para", "start_of_para") if name in wanted]
        self._patterns = [pattern for name, pattern in STRUCTURAL_FEATURES.items() if name in wanted]
        self._is_known = np.zeros(0x110000, dtype=np.bool_)
        self._units = np.zeros(0x110000, dtype=np.int32)
        self._features = np.zeros((0x110000, len(self._functions)), dtype=np.uint8)
        self.padding: int = trainer.vocab.unit2id("<PAD>")
        self.num_features = len(self._functions) + len(self._positions) + len(self._patterns)

    def look_up(self, characters: str, *, opens: bool, closes: bool) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return units, shape ``(C,)``, and features, shape ``(C, features)``, of a window's C characters.

        Args:
            opens, closes: whether the window is the first or last of its paragraph.
        """
        codes = np.frombuffer(characters.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32)
        for code in np.unique(codes[~self._is_known[codes]]).tolist():
            self._is_known[code] = True
            self._units[code] = self._vocabulary.unit2id(chr(code))
            self._features[code] = [function(chr(code)) for function in self._functions]
        features = np.zeros((len(characters), self.num_features), dtype=np.float32)
        column = len(self._functions)
        features[:, :column] = self._features[codes]
        for name in self._positions:
            if name == "end_of_para" and closes:
                features[-1, column] = 1
            elif name == "start_of_para" and opens:
                features[0, column] = 1
            column += 1
        for pattern in self._patterns:
            for match in pattern.finditer(characters):
                features[match.start() : match.end(), column] = 1
            column += 1
        return self._units[codes], features
