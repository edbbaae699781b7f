"""Batches: where text becomes tensors, once.

Shape letters used everywhere: B sentences of a batch, T words of a sentence, C characters of a word, H hidden
units, L labels, S memory slots, M Monte-Carlo weight samples. Tensors are float unless said otherwise; ``mask`` is
``(B, T)``, bool, true for words and false for padding; ``lengths`` is ``(B,)``, int64, on the CPU.

The host does not wait for a device. A GPU computes what it is told in order, while the host goes on. So what the host
reads of it is copied back in the background, and a piece of work that needs such a copy lets others start before it
waits.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from concord.models.data.sentence import Sentence, first_words
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError

PADDING = 0
UNKNOWN = 1
IGNORED_LABEL = -100
WORD_CASES = 4

Computed = TypeVar("Computed")
Item = TypeVar("Item")
Result = TypeVar("Result")
Work = Generator[None, None, Result]
"""Work on a device, which stops wherever the host would have to wait for it."""

_WORD = 8
_END = object()


def word_case(word: str) -> int:
    """Return 0 for a word in upper case, else 1 for an initial capital, 2 for lower case, 3 for any other word."""
    if word.isupper():
        return 0
    if word[:1].isupper():
        return 1
    return 2 if word.islower() else 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Forms:
    """F distinct words, among them the padding; batches of one call may share them."""

    rows: Mapping[str, int]
    """The row of each word."""
    numbers: Tensor
    """Numbers of the words, shape ``(F,)``, int64."""
    characters: Tensor
    """Numbers of their characters, shape ``(F, C)``, int64, 0 where padded."""
    cases: Tensor
    """Their case, shape ``(F,)``, int64, below ``WORD_CASES``."""
    shared: bool = False
    """Whether several batches of one call, during which no weight changes, share the words."""
    _computed: dict[nn.Module, object] = field(default_factory=dict, repr=False, compare=False)

    def once(self, module: nn.Module, compute: Callable[[], Computed]) -> Computed:
        """Return what a module computes from these words alone: the first result, if batches share the words."""
        if not self.shared:
            return compute()
        if module not in self._computed:
            self._computed[module] = compute()
        return self._computed[module]  # type: ignore[return-value]

    def part(self, rows: Tensor) -> "Forms":
        """Return some of the words; ``rows`` has shape ``(R,)``, int64, rising, on the CPU."""
        chosen = set(rows.tolist())
        words = [word for word, row in self.rows.items() if row in chosen]
        (rows,) = send(self.numbers.device, rows)
        return Forms(
            rows={word: row for row, word in enumerate(words)},
            numbers=self.numbers[rows],
            characters=self.characters[rows],
            cases=self.cases[rows],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Targets:
    """What the words of a batch are trained on where the labels of a sentence are not certain."""

    weights: Tensor
    """Shape ``(B, T, L)``, float32; zeros where padded. Probabilities of labels, or 1 for each label that a word may
    have, which is one for a gold label."""
    are_sets: Tensor
    """Which sentences have labels that words may have, rather than probabilities; shape ``(B,)``, bool."""

    def part(self, rows: Tensor, width: int) -> "Targets":
        """Return the targets of some sentences, of at most ``width`` words each."""
        return Targets(weights=self.weights[rows, :width], are_sets=self.are_sets[rows])

    def to(self, device: torch.device | str) -> "Targets":
        """Move the targets to a device."""
        return Targets(weights=self.weights.to(device), are_sets=self.are_sets.to(device))


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """A batch of sentences as tensors."""

    sentences: tuple[Sentence, ...]
    """The sentences themselves, for encoders and memory keys."""
    words: Tensor
    """Numbers of the words, shape ``(B, T)``, int64, 0 where padded."""
    forms: Forms
    """The batch's distinct words, or those of several batches."""
    form_index: Tensor
    """Row of ``forms`` for each word, shape ``(B, T)``, int64."""
    form_rows: Tensor
    """The same on the CPU."""
    lengths: Tensor
    """Words of each sentence, shape ``(B,)``, int64, on the CPU."""
    mask: Tensor
    """True for words, false for padding, shape ``(B, T)``, bool."""
    cells: Tensor
    """The cell of each word among all ``B * T``, shape ``(N,)``, int64."""
    labels: Tensor | None
    """Numbers of the gold labels, shape ``(B, T)``, int64, -100 where padded; None if a sentence has none, or has soft
    labels."""
    tags: Tensor | None
    relations: Tensor | None
    """Numbers of tags and relations, shape ``(B, T)``, int64, 0 where padded; None if a sentence has none."""
    documents: Tensor
    """Number of each sentence's document, shape ``(B,)``, int64, on the CPU; for a tagger that learns from documents,
    the sentences of a document are adjacent and in reading order."""
    targets: Targets | None = None
    """What to train on instead of gold labels, where a sentence of the batch has soft labels."""

    def pad(self, values: Tensor) -> Tensor:
        """Arrange values of the words in reading order, shape ``(N, D)``, as ``(B, T, D)``, zeros where padded."""
        padded = values.new_zeros(self.mask.numel(), values.shape[1]).index_copy(0, self.cells, values)
        return padded.view(*self.mask.shape, -1)

    @property
    def gold(self) -> Tensor:
        """The gold labels; raises ConfigError if a sentence has soft labels, ValueError if it has none."""
        if self.targets is not None:
            raise ConfigError(
                "data.train: expected gold labels for this tagger, whose loss knows no others, got soft or incomplete "
                "labels; train it on gold corpora alone"
            )
        if self.labels is None:
            raise ValueError("loss: expected gold labels for every sentence of the batch, got a sentence without")
        return self.labels

    def part(self, rows: Tensor) -> "Batch":
        """Return a batch of some of the sentences, padded to the longest of them; ``rows`` is int64, shape ``(R,)``."""
        width, device = int(self.lengths[rows].max()), self.words.device
        own_mask = torch.arange(width) < self.lengths[rows][:, None]
        forms, own_index = torch.unique(self.form_rows[rows, :width], return_inverse=True)
        chosen, form_index, mask, cells = send(device, rows, own_index, own_mask, own_mask.flatten().nonzero()[:, 0])
        return Batch(
            sentences=tuple(self.sentences[row] for row in rows.tolist()),
            words=self.words[chosen, :width],
            forms=self.forms.part(forms),
            form_index=form_index,
            form_rows=own_index,
            lengths=self.lengths[rows],
            mask=mask,
            cells=cells,
            labels=None if self.labels is None else self.labels[chosen, :width],
            tags=None if self.tags is None else self.tags[chosen, :width],
            relations=None if self.relations is None else self.relations[chosen, :width],
            documents=self.documents[rows],
            targets=None if self.targets is None else self.targets.part(chosen, width),
        )


class BatchEncoder:
    """Encodes sentences as batches, with the look-up tables of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary, *, max_characters: int = 64, trees: bool = True) -> None:
        """Build the tables.

        Args:
            max_characters: longer words, such as web addresses, are truncated to this many characters.
            trees: whether batches have tags and relations.
        """
        self._vocabulary = vocabulary
        self._trees = trees
        self._max_characters = max_characters
        self._word_numbers = {word: number for number, word in enumerate(vocabulary.words, start=2)}
        codes = np.array(list(map(ord, vocabulary.characters)), dtype=np.uint32)
        order = codes.argsort()
        # Without characters, a code that no text has.
        self._character_codes = codes[order] if len(codes) else np.array([2**32 - 1], dtype=np.uint32)
        self._character_numbers = order + 2 if len(codes) else np.array([UNKNOWN])
        self._label_numbers = {label: number for number, label in enumerate(vocabulary.labels)}
        self._numbers_of_names: dict[tuple[str, ...], NDArray[np.int64]] = {}
        self._tag_numbers = {tag: number for number, tag in enumerate(vocabulary.tags, start=2)}
        self._relation_numbers = {relation: number for number, relation in enumerate(vocabulary.relations, start=2)}

    def encode_batch(
        self,
        sentences: Sequence[Sentence],
        *,
        documents: Sequence[int] | None = None,
        forms: Forms | None = None,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """Encode sentences, each with at least one word; by default every sentence is a document of its own.

        The forms, if given, contain all words of the sentences and are on the device.

        Raises:
            ValueError: for an empty sentence, or a label that is not in the vocabulary.
        """
        lengths = [len(sentence.words) for sentence in sentences]
        if not lengths or min(lengths) == 0:
            raise ValueError("encode_batch: expected one sentence or more, each with a word or more")
        shape = (len(sentences), max(lengths))
        if forms is None:
            forms = self.encode_forms(sentences, device=device)
        length_tensor = torch.tensor(lengths)
        mask = torch.arange(shape[1])[None, :] < length_tensor[:, None]
        form_index = torch.zeros(shape, dtype=torch.int64)
        words = chain.from_iterable(sentence.words for sentence in sentences)
        form_index[mask] = torch.tensor(list(map(forms.rows.__getitem__, words)))
        targets = self._encode_targets(sentences, shape)
        labels = self._encode_labels(sentences, shape) if targets is None else None
        tags = self._encode_column([sentence.tags for sentence in sentences], self._tag_numbers, mask)
        relations = self._encode_column([sentence.relations for sentence in sentences], self._relation_numbers, mask)
        form_rows, cells = form_index, mask.flatten().nonzero()[:, 0]
        form_index, cells, mask = send(torch.device(device), form_rows, cells, mask)
        return Batch(
            sentences=tuple(sentences),
            words=forms.numbers[form_index],
            forms=forms,
            form_index=form_index,
            form_rows=form_rows,
            lengths=length_tensor,
            mask=mask,
            cells=cells,
            labels=None if labels is None else labels.to(device),
            tags=None if tags is None else tags.to(device),
            relations=None if relations is None else relations.to(device),
            documents=torch.tensor(documents if documents is not None else range(len(sentences))),
            targets=None if targets is None else targets.to(device),
        )

    def encode_forms(
        self, sentences: Iterable[Sentence], *, device: torch.device | str = "cpu", shared: bool = False
    ) -> Forms:
        """Encode the distinct words of sentences; ``shared`` as in Forms."""
        words = dict.fromkeys(chain(("",), chain.from_iterable(sentence.words for sentence in sentences)))
        found = [self._word_numbers.get(self._vocabulary.word_form(word), UNKNOWN) for word in words if word]
        numbers, characters, cases = send(
            torch.device(device),
            torch.tensor([PADDING, *found]),
            self._encode_characters(words),
            torch.tensor([word_case(word) for word in words]),
        )
        return Forms(
            rows={word: row for row, word in enumerate(words)},
            numbers=numbers,
            characters=characters,
            cases=cases,
            shared=shared,
        )

    def _encode_characters(self, words: Iterable[str]) -> Tensor:
        spellings = [self._vocabulary.spelling(word)[: self._max_characters] for word in words]
        lengths = torch.tensor([len(spelling) for spelling in spellings])
        characters = torch.zeros((len(spellings), max(1, int(lengths.max()))), dtype=torch.int64)
        inside = torch.arange(characters.shape[1])[None, :] < lengths[:, None]
        codes = np.frombuffer("".join(spellings).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        known = self._character_codes
        places = np.searchsorted(known, codes).clip(max=len(known) - 1)
        numbers = np.where(known[places] == codes, self._character_numbers[places], UNKNOWN)
        characters[inside] = torch.from_numpy(numbers)
        return characters

    def _encode_column(
        self, column: Sequence[tuple[str, ...] | None], numbers: Mapping[str, int], mask: Tensor
    ) -> Tensor | None:
        values = [entries for entries in column if entries is not None]
        if not self._trees or len(values) < len(column):
            return None
        encoded = torch.zeros(mask.shape, dtype=torch.int64)
        encoded[mask] = torch.tensor([numbers.get(value, UNKNOWN) for value in chain.from_iterable(values)])
        return encoded

    def _encode_labels(self, sentences: Sequence[Sentence], shape: tuple[int, int]) -> Tensor | None:
        if any(sentence.labels is None for sentence in sentences):
            return None
        labels = torch.full(shape, IGNORED_LABEL, dtype=torch.int64)
        for row, sentence in enumerate(sentences):
            numbers = self._gold_numbers(sentence)
            labels[row, : len(numbers)] = torch.tensor(numbers)
        return labels

    def _gold_numbers(self, sentence: Sentence) -> list[int]:
        """Return the numbers of a sentence's gold labels."""
        own = self._vocabulary.scheme.from_gold(sentence.labels or ())
        for column, label in enumerate(own):
            if label not in self._label_numbers:
                raise ValueError(
                    f"label: expected one of {', '.join(self._vocabulary.labels)}, got {label!r} "
                    f"at word {column + 1} of {first_words(sentence)!r}"
                )
        return [self._label_numbers[label] for label in own]

    def _encode_targets(self, sentences: Sequence[Sentence], shape: tuple[int, int]) -> Targets | None:
        """Encode gold and soft labels alike; None if no sentence has soft labels, or one has none at all."""
        if all(sentence.soft is None for sentence in sentences):
            return None
        if any(sentence.soft is None and sentence.labels is None for sentence in sentences):
            return None
        weights = np.zeros((*shape, len(self._vocabulary.labels)), dtype=np.float32)
        for row, sentence in enumerate(sentences):
            soft = sentence.soft
            if soft is None:
                weights[row, range(len(sentence.words)), self._gold_numbers(sentence)] = 1.0
            else:
                numbers = self._soft_numbers(soft.names)[soft.labels]
                weights[row, soft.words, numbers] = 1.0 if soft.probabilities is None else soft.probabilities
        are_sets = [sentence.soft is None or sentence.soft.probabilities is None for sentence in sentences]
        return Targets(weights=torch.from_numpy(weights), are_sets=torch.tensor(are_sets))

    def _soft_numbers(self, names: tuple[str, ...]) -> NDArray[np.int64]:
        """Return the number of each name among the vocabulary's labels."""
        if names not in self._numbers_of_names:
            if unknown := set(names) - self._label_numbers.keys():
                raise ValueError(
                    f"soft labels: expected some of {', '.join(self._vocabulary.labels)}, got {min(unknown)!r}"
                )
            self._numbers_of_names[names] = np.array([self._label_numbers[name] for name in names])
        return self._numbers_of_names[names]


def word_rows(firsts: Tensor, lengths: Tensor) -> Tensor:
    """Return the row of each word of a batch, shape ``(B, T)``, int64, -1 where padded.

    ``firsts`` has the row of each sentence's first word, shape ``(B,)``, int64.
    """
    places = torch.arange(int(lengths.max()))
    return (firsts[:, None] + places).masked_fill(places >= lengths[:, None], -1)


def by_step(lengths: Tensor, width: int) -> tuple[Tensor, list[int]]:
    """Order words by step, and within a step by length of their sentence, longest first.

    Return the cells of the words among all ``B * T``, shape ``(2, N)``, counting steps from the start of each sentence
    and from its end, and the number of sentences at each step.
    """
    ordered, sentences = lengths.sort(descending=True, stable=True)
    steps = torch.arange(width)[:, None]
    inside = steps < ordered
    firsts = sentences * width
    sizes = [size for size in inside.sum(dim=1).tolist() if size]
    return torch.stack([(firsts + steps)[inside], (firsts + ordered - 1 - steps)[inside]]), sizes


def in_blocks(items: Iterable[Item], size: Callable[[Item], int], *, least: int) -> Iterator[list[Item]]:
    """Split items into blocks whose sizes add up to ``least`` or more; the last may be smaller."""
    block: list[Item] = []
    for item in items:
        block.append(item)
        if sum(map(size, block)) >= least:
            yield block
            block = []
    if block:
        yield block


def send(device: torch.device, *values: Tensor) -> list[Tensor]:
    """Copy tensors of the CPU to a device, all in one copy; the same tensors if it is the CPU."""
    if device.type == "cpu":
        return list(values)
    parts = [value.contiguous().view(-1).view(torch.uint8) for value in values]
    # Each part begins where a number of eight bytes may.
    padded = [torch.nn.functional.pad(part, (0, -len(part) % _WORD)) for part in parts]
    pinned = torch.empty(sum(map(len, padded)), dtype=torch.uint8, pin_memory=True)
    sent = torch.cat(padded, out=pinned).to(device, non_blocking=True).split([len(part) for part in padded])
    return [
        found[: len(part)].view(value.dtype).view(value.shape)
        for found, part, value in zip(sent, parts, values, strict=True)
    ]


def fetch(values: Tensor) -> Callable[[], Tensor]:
    """Start to copy a tensor to the CPU; return a function that waits for the copy and returns it."""
    if values.device.type == "cpu":
        return lambda: values
    copied = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    copied.copy_(values, non_blocking=True)
    done = torch.cuda.Event()
    done.record()

    def wait() -> Tensor:
        done.synchronize()
        return copied

    return wait


def finished(work: Work[Result]) -> Result:
    """Do a piece of work to its end, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result


def overlap(works: Iterable[Work[None]], device: torch.device) -> None:
    """Do pieces of work; on a GPU, start each before the host waits for those before it."""
    running: list[Work[None]] = []
    for work in works:
        if device.type == "cpu":
            finished(work)
            continue
        is_running = _goes_on(work)
        running = [other for other in running if _goes_on(other)]
        if is_running:
            running.append(work)
    while running:
        running = [work for work in running if _goes_on(work)]


def _goes_on(work: Work[None]) -> bool:
    """Do a piece of work up to its next stop; return whether that is not its end."""
    return next(work, _END) is not _END
