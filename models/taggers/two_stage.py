"""The tagger of two stages behind UANet and Doc-UANet: it drafts labels, then refines the uncertain ones.

Stage one (Ye et al., 2021, section III-A) is a variational LSTM with a softmax; M weight samples give a mean
probability whose entropy, in nats, is the uncertainty. Stage two (section III-B) has word representations of its own
and reads the draft labels as the expected label embedding under the detached mean probability. A draft is replaced only
where its uncertainty exceeds the threshold, so a sentence without such a word skips stage two, with the same result.
With a ``draft_share`` the two probabilities are averaged there.
Doc-UANet adds the document memory, read once: before the last layer or, in the form of the paper, the first, where it
is then joined to the streams before every layer.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from concord.models.data.batch import IGNORED_LABEL, Batch, Work, finished, overlap, send, word_rows
from concord.models.data.outputs import AttentionWeights, Draft, OnBatch, Precision, PredictOptions, Refined
from concord.models.data.sentence import Sentence, Window
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.distribution import LabelDistribution, SoftmaxDistribution, SpanQuery, joint_probability
from concord.models.layers.attention import capture_outputs
from concord.models.taggers.base import Call, Tagger
from concord.models.taggers.token_table import KeptWords, TokenTable
from concord.models.taggers.two_stage_networks import (
    DocumentMemory,
    DraftNetwork,
    RefineNetwork,
    TwoStageConfig,
    number_words,
)
from concord.models.terms import find_contradictions, leave_matches_to_stage_two

# Stage two trains on groups of sentences: a group ends once it has this many and more than this share is padding.
_GROUP_SENTENCES = 16
_MOST_PADDING = 0.25
# The most words in a batch of stage two, padding included: what a CPU's cache holds of their attention to each other.
_REFINED_WORDS = {"cpu": 1024}


class TwoStageTagger(Tagger[TwoStageConfig]):
    """Drafts every sentence and refines those with an uncertain word; each stage has its own word representation."""

    def __init__(self, config: TwoStageConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.draft_network = DraftNetwork(
            config.draft_representation, config.lstm, vocabulary, encoder_width=self.encoder_width
        )
        self.refine_network = RefineNetwork(config, vocabulary, self.encoder_width)

    @property
    @override
    def threshold(self) -> float:
        return self.config.threshold

    @override
    def set_threshold(self, threshold: float) -> None:
        self.config = self.config.model_copy(update={"threshold": threshold})

    @override
    def parameter_groups(self) -> Mapping[str, list[nn.Parameter]]:
        return {
            "stage_one": list(self.draft_network.parameters()),
            "stage_two": list(self.refine_network.parameters()),
            **self.encoder_group(),
        }

    @override
    def loss(self, batch: Batch) -> Tensor:
        """Return the negative log-likelihoods of both stages, summed over words, divided by the number of sentences.

        A tuned encoder learns from stage one alone; stage two reads its features detached, and the drafts of stage one.
        """
        features = self.encoder_features(batch)
        logits, hidden = self.draft_network(batch, features)
        probabilities = logits.detach().float().softmax(dim=-1)
        memory, rows = self._fill_memory(batch, hidden, probabilities), _batch_rows(batch)
        total = _cross_entropy(logits, batch)
        for group in _groups_by_length(batch.lengths):
            part = batch.part(group)
            cells = group, slice(part.mask.shape[1])
            part_features = features[cells].detach() if features is not None else None
            contents = memory.read(rows[cells]) if memory is not None else None
            refined = self.refine_network(part, part_features, probabilities[cells], contents)
            total = total - self.refine_network.decoder(refined, part.mask).log_likelihood(part).sum()
        return total / len(batch.sentences)

    @override
    def attend(self, batch: Batch) -> Mapping[str, AttentionWeights]:
        """Return stage two's attention: ``words_1`` and up over words, ``drafts`` over their drafts, ``memory``.

        With the label stream of the paper the drafts have a map for each layer, ``drafts_1`` and up.
        """
        features = self.encoder_features(batch)
        draft = finished(self._draft(batch, features, samples=None))
        memory, rows = self._fill_memory(batch, draft.hidden, draft.probabilities), _batch_rows(batch)
        contents = memory.read(rows) if memory is not None else None
        with capture_outputs(self.refine_network.attentions()) as outputs:
            self.refine_network(batch, features, draft.probabilities, contents)
        attention = {
            name: AttentionWeights(weights=outputs[name], over="words")
            for name in self.refine_network.encoder.attentions()
        }
        if memory is not None:
            slots = memory.slots(rows).to(self.device)
            weights = _weights_by_word(outputs.get("memory"), slots, words=len(memory.index))
            attention["memory"] = AttentionWeights(weights=weights, over="document")
        return attention

    @override
    def fill(self, table: TokenTable, windows: Sequence[Window], call: Call) -> None:
        """Draft and remember all windows, and refine those with an uncertain word."""
        threshold = call.options.threshold
        work = _Work(
            table=table,
            options=call.options,
            threshold=self.threshold if threshold is None else threshold,
            memory=self._empty_memory(table.documents),
            on_batch=call.on_batch,
        )
        batch_words = self.batch_words(call.options)
        batches = self.batches(windows, batch_words=batch_words, on_batch=call.on_batch)
        overlap((self._draft_and_remember(work, part, batch) for part, batch in batches), self.device)
        self._refine(work, batch_words=batch_words, words=sum(len(window.sentence.words) for window in windows))

    def _draft_and_remember(self, work: "_Work", windows: Sequence[Window], batch: Batch) -> Work[None]:
        """Draft a batch, store it in the memory, and keep what stage two must read."""
        options, table = work.options, work.table
        with self.autocast(options.precision):
            features = self.encoder_features(batch)
        draft = yield from self._draft(batch, features, samples=options.samples, precision=options.precision)
        words = KeptWords.of(windows, batch.mask.shape[1])
        found = yield from table.write_labels(
            words, draft.labels, probabilities=draft.probabilities, uncertainty=draft.uncertainty
        )
        contradictions = find_contradictions(batch, found.labels, self.vocabulary)
        draft = leave_matches_to_stage_two(draft, contradictions)
        if work.memory is not None:
            work.memory.write(words.rows, words.cells, draft.hidden, draft.probabilities)
        inside = _window_rows(windows, batch) >= 0
        is_uncertain = ((found.other > work.threshold) & inside).any(dim=1)
        is_uncertain[[contradiction.sentence for contradiction in contradictions]] = True
        work.drafts.add(windows, inside, is_uncertain, draft, features)
        certain = (~is_uncertain).nonzero()[:, 0].tolist()
        probability = partial(drafted_probability, draft.samples)
        yield from table.write_spans(
            windows, found.labels, self.vocabulary, probability, self.device, sentences=certain
        )

    def _refine(self, work: "_Work", *, batch_words: int, words: int) -> None:
        """Run stage two on the uncertain windows of a call with this many words; overwrite their uncertain labels."""
        most = min(batch_words, _REFINED_WORDS.get(self.device.type, batch_words))
        ordered = sorted(work.drafts.windows, key=lambda window: window.first)

        def works() -> Iterator[Work[None]]:
            for part, batch in self.batches(ordered, batch_words=most):
                if work.on_batch is not None:
                    work.on_batch(words, words)
                yield self._refine_batch(work, part, batch)

        overlap(works(), self.device)

    def _refine_batch(self, work: "_Work", windows: Sequence[Window], batch: Batch) -> Work[None]:
        memory = work.memory
        probabilities, uncertainty, samples, features = work.drafts.read(windows, batch)
        contents = memory.read(_window_rows(windows, batch)) if memory is not None else None
        with self._small_networks(work.options.precision):
            logits = self.refine_network(batch, features, probabilities, contents)
        if share := self.config.draft_share:
            averaged = share * probabilities + (1 - share) * logits.float().softmax(dim=-1)
            logits = averaged.clamp(min=torch.finfo(averaged.dtype).tiny).log()
        stage_two = self.refine_network.decoder(logits, batch.mask)
        merged = merge_stages(probabilities, uncertainty, stage_two, work.threshold)
        found = yield from work.table.write_refined(KeptWords.of(windows, batch.mask.shape[1]), merged)
        probability = partial(span_probability, samples, stage_two, merged.refined)
        yield from work.table.write_spans(windows, found.labels, self.vocabulary, probability, self.device)

    def _small_networks(self, precision: Precision) -> AbstractContextManager[Any]:
        """Return the context in which all but the encoder computes: on a CPU bfloat16 would slow it down."""
        return self.autocast("fp32" if self.device.type == "cpu" else precision)

    def _draft(
        self, batch: Batch, features: Tensor | None, *, samples: int | None, precision: Precision = "fp32"
    ) -> Work[Draft]:
        """Draft a batch with weight samples for every sentence if their number is given, else as configured."""
        return self.draft_network.drafting(
            batch,
            features,
            self.draft_network.lstm.weight_samples(samples or self.config.samples, self.config.sample_seed),
            samples_above=self.config.samples_above if samples is None else None,
            computing=partial(self._small_networks, precision),
        )

    def _empty_memory(self, documents: Sequence[Sequence[Sentence]]) -> DocumentMemory | None:
        """Allocate a memory for the words of documents; None for a tagger without one."""
        config = self.config.document_memory
        if config is None:
            return None
        words = [[word for sentence in document for word in sentence.words] for document in documents]
        return DocumentMemory(
            number_words(words, config.key),
            slots=config.slots,
            hidden=2 * self.config.lstm.hidden,
            labels=len(self.vocabulary.labels),
            device=self.device,
        )

    def _fill_memory(self, batch: Batch, hidden: Tensor, probabilities: Tensor) -> DocumentMemory | None:
        """Store all words of a batch that holds whole documents, one after the other."""
        documents: dict[int, list[Sentence]] = {}
        for sentence, document in zip(batch.sentences, batch.documents.tolist(), strict=True):
            documents.setdefault(document, []).append(sentence)
        memory = self._empty_memory(list(documents.values()))
        if memory is not None:
            cells = (_batch_rows(batch) >= 0).flatten().nonzero()[:, 0]
            memory.write(torch.arange(len(cells)), cells, hidden, probabilities)
        return memory


def _cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Return the negative log-likelihood of a batch's labels under a softmax of logits ``(B, T, L)``, a scalar."""
    if batch.targets is not None:
        return -SoftmaxDistribution(logits, batch.mask).log_likelihood(batch).sum()
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), batch.gold.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )


def merge_stages(
    draft_probabilities: Tensor, uncertainty: Tensor, stage_two: LabelDistribution, threshold: float
) -> Refined:
    """Keep drafts whose uncertainty, in nats, is at most the threshold; take stage two's labels elsewhere.

    Stage two, a CRF too, labels every word before its labels are chosen from: what it predicts for a word depends
    neither on the threshold nor on which drafts are kept. The mixture need not be well formed; the span decoder drops
    what is not.
    """
    refined = uncertainty > threshold
    labels = torch.where(refined, stage_two.mode(), draft_probabilities.argmax(dim=-1))
    return Refined(probabilities=stage_two.marginals(), labels=labels, refined=refined)


def span_probability(samples: Tensor, stage_two: LabelDistribution, refined: Tensor, query: SpanQuery) -> Tensor:
    """Return the probability of spans whose words take their labels from either stage, shape ``(K,)``.

    The drafted words of a span depend on each other through the weight samples, shape ``(M, B, T, L)``, so their
    product is taken within each sample. Stage two reads the mean of the samples, so its part is the same in all of
    them; ``refined``, ``(B, T)``, is true where the label is its own.
    """
    return drafted_probability(samples, query.restricted_to(~refined)) * stage_two.span_probability(
        query.restricted_to(refined)
    )


def drafted_probability(samples: Tensor, query: SpanQuery) -> Tensor:
    """Return the probability of spans whose labels are all drafts, shape ``(K,)``; arguments as above."""
    return joint_probability(samples, query).mean(dim=0)


class _UncertainDrafts:
    """What stage one computed for the words of uncertain windows, which stage two reads."""

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self._first: dict[int, int] = {}
        self._words = 0
        self._parts: list[list[Tensor]] = []

    def add(
        self, windows: Sequence[Window], inside: Tensor, chosen: Tensor, draft: Draft, features: Tensor | None
    ) -> None:
        """Copy the results of some windows, ``chosen``, ``(B,)``, bool, out of a batch, whose words are ``inside``."""
        numbers = chosen.nonzero()[:, 0].tolist()
        if not numbers:
            return
        for number in numbers:
            window = windows[number]
            self.windows.append(window)
            self._first[window.first] = self._words
            self._words += len(window.sentence.words)
        (cells,) = send(draft.labels.device, (inside & chosen[:, None]).flatten().nonzero()[:, 0])
        # The words come first, and the weight samples after them.
        values = [draft.probabilities, draft.uncertainty, draft.samples.movedim(0, 2), features]
        self._parts.append([value.flatten(0, 1).index_select(0, cells) for value in values if value is not None])

    @cached_property
    def _columns(self) -> list[Tensor]:
        """What was added, joined, with zeros for padding at the end."""
        columns, self._parts = list(zip(*self._parts, strict=True)), []
        return [torch.cat([*column, torch.zeros_like(column[0][:1])]) for column in columns]

    def read(self, windows: Sequence[Window], batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return probabilities, uncertainty, samples and features of a batch of windows, zeros where padded."""
        rows = word_rows(torch.tensor([self._first[window.first] for window in windows]), batch.lengths)
        (index,) = send(batch.mask.device, rows.masked_fill(rows < 0, self._words))
        probabilities, uncertainty, samples, *features = (column[index] for column in self._columns)
        return probabilities, uncertainty, samples.movedim(2, 0), features[0] if features else None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    """What the stages share while they fill a table."""

    table: TokenTable
    options: PredictOptions
    threshold: float
    """Nats above which stage two decides."""
    memory: DocumentMemory | None
    on_batch: OnBatch | None
    drafts: _UncertainDrafts = field(default_factory=_UncertainDrafts)


def _window_rows(windows: Sequence[Window], batch: Batch) -> Tensor:
    """Return the row of each word of a batch of windows in its call, shape ``(B, T)``, int64, -1 where padded."""
    return word_rows(torch.tensor([window.first for window in windows]), batch.lengths)


def _batch_rows(batch: Batch) -> Tensor:
    return word_rows(batch.lengths.cumsum(0) - batch.lengths, batch.lengths)


def _groups_by_length(lengths: Tensor) -> Iterator[Tensor]:
    """Group a batch's sentences by length, so that little is padded.

    Sentences meet only in the memory, which stage one has filled, so stage two may read them group by group.
    """
    order = lengths.argsort(descending=True)
    start = 0
    while start < len(order):
        longest, total, end = int(lengths[order[start]]), 0, start
        while end < len(order):
            total += int(lengths[order[end]])
            if end - start >= _GROUP_SENTENCES and total < (1 - _MOST_PADDING) * longest * (end + 1 - start):
                break
            end += 1
        yield order[start:end]
        start = end


def _weights_by_word(weights: Tensor | None, slots: Tensor, words: int) -> Tensor:
    """Convert reading weights by slot, ``(recurring words, S)``, to weights by word, shape ``(B, 1, T, words)``.

    The weights are those of the words that have another occurrence, in order; None if no word has one. The slots hold
    words, shape ``(B, T, S)``, int64, -1 for an empty slot.
    """
    recurs = (slots >= 0).any(dim=-1)
    by_word = torch.zeros(*recurs.shape, words, device=slots.device)
    if weights is not None:
        # An empty slot has no weight to add.
        by_word[recurs] = by_word[recurs].scatter_add(1, slots[recurs].clamp(min=0), weights)
    return by_word[:, None]
