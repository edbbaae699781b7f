"""The two stages of UANet and Doc-UANet: draft labels with an uncertainty, then refine the uncertain ones.

Stage one (Ye et al., 2021, section III-B) is a variational LSTM with a softmax; M weight samples give a mean
probability whose entropy, in nats, is the uncertainty. Stage two (section III-C) has word representations of its own
and reads the draft labels as the expected label embedding under the detached mean probability. A draft is replaced
only where its uncertainty exceeds the threshold, so a sentence without such a word needs no stage two: leaving it
out changes nothing. Doc-UANet adds the document memory, read once before the last layer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from typing_extensions import override

from concord.models.data.batch import IGNORED_LABEL, Batch
from concord.models.data.vocabulary import Vocabulary
from concord.models.inference.token_table import TokenTable, kept_cells, top_two_margin
from concord.models.inference.windows import Window
from concord.models.layers.captured_outputs import capture_outputs
from concord.models.outputs import AttentionWeights
from concord.models.tagger import CallSettings, Tagger
from concord.models.two_stage.config import MemoryConfig, TwoStageConfig
from concord.models.two_stage.document_memory import occurrence_index
from concord.models.two_stage.draft_network import DraftNetwork
from concord.models.two_stage.refine_network import MemoryContents, RefineNetwork
from concord.models.two_stage.store import (
    MemoryStore,
    drafted_probability,
    merge_stages,
    span_probability,
    spread_memory,
)


@dataclass(kw_only=True, slots=True)
class _Pending:
    """An uncertain window that waits for stage two, with what stage one computed for it."""

    window: Window
    probabilities: Tensor
    uncertainty: Tensor
    samples: Tensor
    features: Tensor | None


class TwoStageTagger(Tagger):
    """Drafts every sentence, refines those that hold an uncertain word."""

    def __init__(self, config: TwoStageConfig, vocabulary: Vocabulary, memory: MemoryConfig | None) -> None:
        """Build both stages; their word representations are separate."""
        super().__init__(config, vocabulary)
        self._two_stage = config
        self._memory = memory
        self.draft_network = DraftNetwork(
            config.draft_representation, config.lstm, vocabulary, encoder_width=self.encoder_width
        )
        self.refine_network = RefineNetwork(config, vocabulary, self.encoder_width, memory)

    @property
    @override
    def threshold(self) -> float:
        return self._two_stage.threshold

    def set_threshold(self, threshold: float) -> None:
        """Make another threshold, in nats, the tagger's own; it is saved with the tagger."""
        self.config = self._two_stage = self._two_stage.model_copy(update={"threshold": threshold})

    @property
    def memory_slots(self) -> int | None:
        """Other occurrences that a word reads at most; None for a tagger without a document memory."""
        return None if self._memory is None else self._memory.slots

    def set_memory_slots(self, slots: int) -> None:
        """Let words read at most so many other occurrences; with 0 of them every word reads what a lone one does.

        Raises:
            ValueError: for a tagger without a document memory, or fewer than 0.
        """
        if self._memory is None or slots < 0:
            raise ValueError(f"set_memory_slots: expected 0 or more and a tagger with a memory, got {slots}")
        self._memory = self._memory.model_copy(update={"slots": slots})
        self.config = self._two_stage = self._two_stage.model_copy(update={"memory": self._memory})

    @override
    def parameter_groups(self) -> Mapping[str, list[nn.Parameter]]:
        return {
            "stage_one": list(self.draft_network.parameters()),
            "stage_two": list(self.refine_network.parameters()),
            **self.encoder_group(),
        }

    @override
    def loss(self, batch: Batch) -> Tensor:
        """Give the negative log-likelihoods of both stages, summed over words, divided by the number of sentences.

        A tuned encoder learns from stage one alone; stage two reads what it gives.
        """
        gold = batch.gold
        features = self.encoder_features(batch)
        logits, hidden = self.draft_network(batch, features)
        total = _summed_cross_entropy(logits, gold)
        probabilities = logits.detach().softmax(dim=-1)
        memory = self._batch_memory(batch, hidden, probabilities)
        for rows in _rows_by_length(batch.lengths):
            part, width = _take_rows(batch, rows), int(batch.lengths[rows].max())
            part_memory = replace(memory, slots=memory.slots[rows, :width]) if memory is not None else None
            part_features = features[rows, :width].detach() if features is not None else None
            refined = self.refine_network(part, part_features, probabilities[rows, :width], part_memory)
            total = total + self.refine_network.loss(refined, gold[rows, :width], part.mask)
        return total / len(batch.sentences)

    @override
    def attend(self, batch: Batch) -> Mapping[str, AttentionWeights]:
        """Give stage two's attention: ``words_1`` and up over words, ``drafts`` over their drafts, ``memory``."""
        config, features = self._two_stage, self.encoder_features(batch)
        samples = self.draft_network.lstm.draw_samples(config.samples, config.sample_seed)
        draft = self.draft_network.draft(batch, features, samples)
        memory = self._batch_memory(batch, draft.hidden, draft.probabilities)
        with capture_outputs(self.refine_network.attentions()) as seen:
            self.refine_network(batch, features, draft.probabilities, memory)
        found = {
            name: AttentionWeights(weights=seen[name], over="words")
            for name in self.refine_network.encoder.attentions()
        }
        if memory is not None:
            none = draft.probabilities.new_zeros(0, memory.slots.shape[-1])
            weights = spread_memory(seen.get("memory", none), memory, batch.mask)
            found["memory"] = AttentionWeights(weights=weights, over="document")
        return found

    @override
    def fill(self, table: TokenTable, settings: CallSettings) -> None:
        threshold = self._two_stage.threshold if settings.threshold is None else settings.threshold
        store = self._new_store(table)
        pending = self._draft_all(table, settings, threshold, store)
        self._refine_all(table, settings, threshold, store, pending)

    def _draft_all(
        self, table: TokenTable, settings: CallSettings, threshold: float, store: "MemoryStore | None"
    ) -> list[_Pending]:
        config = self._two_stage
        samples = self.draft_network.lstm.draw_samples(settings.samples or config.samples, config.sample_seed)
        pending: list[_Pending] = []
        for windows, batch in self.batches(settings.windows, batch_words=settings.batch_words):
            features = self.encoder_features(batch)
            with self.autocast(settings.precision):
                draft = self.draft_network.draft(batch, features, samples)
            rows, cells = kept_cells(windows, batch.mask.shape[1])
            for column, values in (
                (table.draft, draft.labels),
                (table.label, draft.labels),
                (table.margin, top_two_margin(draft.probabilities)),
                (table.uncertainty, draft.uncertainty),
            ):
                column[rows] = values.flatten().cpu()[cells]
            table.write_probabilities(rows, cells, draft.probabilities, draft.labels)
            if store is not None:
                store.write(rows, draft, cells)
            uncertain = ((draft.uncertainty > threshold) & batch.mask).any(dim=1).tolist()
            table.write_spans(
                windows,
                draft.labels,
                self.vocabulary,
                partial(drafted_probability, draft.samples),
                sentences=[number for number, wanted in enumerate(uncertain) if not wanted],
            )
            for number in (number for number, wanted in enumerate(uncertain) if wanted):
                length = len(windows[number].sentence.words)
                pending.append(
                    _Pending(
                        window=windows[number],
                        probabilities=draft.probabilities[number, :length].clone(),
                        uncertainty=draft.uncertainty[number, :length].clone(),
                        samples=draft.samples[:, number, :length].transpose(0, 1).clone(),
                        features=features[number, :length].clone() if features is not None else None,
                    )
                )
        return pending

    def _refine_all(
        self,
        table: TokenTable,
        settings: CallSettings,
        threshold: float,
        store: "MemoryStore | None",
        pending: Sequence[_Pending],
    ) -> None:
        waiting = {id(item.window): item for item in pending}
        ordered = sorted((item.window for item in pending), key=lambda window: window.first)
        for windows, batch in self.batches(ordered, batch_words=settings.batch_words):
            items = [waiting[id(window)] for window in windows]
            probabilities = nn.utils.rnn.pad_sequence([item.probabilities for item in items], batch_first=True)
            uncertainty = nn.utils.rnn.pad_sequence([item.uncertainty for item in items], batch_first=True)
            samples = nn.utils.rnn.pad_sequence([item.samples for item in items], batch_first=True).movedim(2, 0)
            kept = [item.features for item in items if item.features is not None]
            features = nn.utils.rnn.pad_sequence(kept, batch_first=True) if kept else None
            memory = store.read(windows, batch.mask.shape[1]) if store is not None else None
            with self.autocast(settings.precision):
                logits = self.refine_network(batch, features, probabilities, memory)
            decided = self.refine_network.decide(logits, batch.mask)
            refined = merge_stages(probabilities, uncertainty, decided, threshold)
            table.write_spans(
                windows, refined.labels, self.vocabulary, partial(span_probability, samples, decided, refined.refined)
            )
            rows, cells = kept_cells(windows, batch.mask.shape[1])
            chosen = refined.refined.flatten().cpu()[cells]
            rows, cells = rows[chosen], cells[chosen]
            table.label[rows] = refined.labels.flatten().cpu()[cells]
            table.write_probabilities(rows, cells, refined.probabilities, refined.labels)
            margin = top_two_margin(refined.probabilities).flatten().cpu()[cells]
            table.margin[rows] = torch.minimum(table.margin[rows], margin)
            table.refined[rows] = True

    def _new_store(self, table: TokenTable) -> "MemoryStore | None":
        if self._memory is None:
            return None
        config = self._two_stage
        return MemoryStore(
            table.documents, self._memory, hidden=2 * config.lstm.hidden, labels=len(self.vocabulary.labels),
            device=self.device,
        )  # fmt: skip

    def _batch_memory(self, batch: Batch, hidden: Tensor, probabilities: Tensor) -> MemoryContents | None:
        """Give what the words of a batch that holds all of its documents may read: cells of the flattened batch."""
        if self._memory is None:
            return None
        documents: dict[int, list[str]] = {}
        for sentence, document in zip(batch.sentences, batch.documents.tolist(), strict=True):
            documents.setdefault(document, []).extend(sentence.words)
        index = occurrence_index(list(documents.values()), key=self._memory.key, slots=self._memory.slots)
        cells = batch.mask.flatten().cpu().nonzero()[:, 0]
        slots = torch.full((batch.mask.numel(), self._memory.slots), -1, dtype=torch.int64)
        slots[cells] = torch.where(index >= 0, cells[index.clamp(min=0)], -1)
        return MemoryContents(
            hidden=hidden.flatten(0, 1),
            probabilities=probabilities.flatten(0, 1),
            slots=slots.view(*batch.mask.shape, self._memory.slots).to(self.device),
        )


def _summed_cross_entropy(logits: Tensor, gold: Tensor) -> Tensor:
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), gold.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )


def _rows_by_length(lengths: Tensor, *, most_waste: float = 0.25) -> Iterator[Tensor]:
    """Group a batch's sentences by length, so that padding stays below a share of each group's cells.

    Sentences meet only in the memory, which stage one has filled, so stage two may take them group by group.
    """
    order = lengths.argsort(descending=True)
    start = 0
    while start < len(order):
        longest, total, end = int(lengths[order[start]]), 0, start
        while end < len(order):
            total += int(lengths[order[end]])
            if end - start >= 16 and total < (1 - most_waste) * longest * (end + 1 - start):
                break
            end += 1
        yield order[start:end]
        start = end


def _take_rows(batch: Batch, rows: Tensor) -> Batch:
    """Give a batch of some of the sentences, cut to the longest of them."""
    width = int(batch.lengths[rows].max())
    forms, form_index = torch.unique(batch.form_index[rows, :width], return_inverse=True)
    return Batch(
        sentences=tuple(batch.sentences[row] for row in rows.tolist()),
        words=batch.words[rows, :width],
        forms=batch.forms[forms],
        form_cases=batch.form_cases[forms],
        form_index=form_index,
        lengths=batch.lengths[rows],
        mask=batch.mask[rows, :width],
        labels=batch.labels[rows, :width] if batch.labels is not None else None,
        tags=batch.tags[rows, :width] if batch.tags is not None else None,
        relations=batch.relations[rows, :width] if batch.relations is not None else None,
        documents=batch.documents[rows],
    )
