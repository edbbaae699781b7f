"""The training loop: epochs, dev scores and the best checkpoint; a resumed training ends with the same weights.

Before it: the batches of an epoch, and an optimizer with a learning-rate schedule per parameter group of a tagger.
"""

import json
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from pydantic import Field, TypeAdapter
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from concord.models.bundles.checkpoint import save_tagger, write_tensors
from concord.models.bundles.manifest import BUNDLE_NAME
from concord.models.config import Config
from concord.models.data.batch import Batch, fetch, in_blocks
from concord.models.data.outputs import Precision, PredictOptions
from concord.models.data.sentence import Sentence, first_documents
from concord.models.errors import ConfigError
from concord.models.evaluation.metrics import gold_sequences, span_scores
from concord.models.labels import LabelScheme
from concord.models.taggers.base import Tagger
from concord.models.taggers.token_table import TokenTable
from concord.models.training.fit_calibration import (
    REFINE_ALL,
    best_threshold,
    label_sequences,
    labels_at,
    sweep_threshold,
)

# Sentences are sorted by length within pools of this many batches, so that a batch has little padding.
_POOL_BATCHES = 20

Unit = Sequence[Sentence]
"""Sentences that stay together: a part of a document, or a single sentence."""
_Item = TypeVar("_Item")


class CaseNoise(Config):
    """Which share of the sentences an epoch reads with another case; the others stay as they are."""

    lower: float = Field(default=0.0, ge=0, le=0.5)
    """In lower case, as in hasty messages."""
    upper: float = Field(default=0.0, ge=0, le=0.5)
    """In upper case, as in headlines."""


def change_case(batches: Sequence[Sequence[Unit]], noise: CaseNoise, chooser: random.Random) -> list[list[Unit]]:
    """Change the case of randomly chosen sentences, which an encoder then reads alone; labels and trees stay."""

    def changed(sentence: Sentence) -> Sentence:
        drawn = chooser.random()
        if drawn < noise.lower:
            return replace(sentence, words=tuple(map(str.lower, sentence.words)), passage=None, passage_start=0)
        if drawn < noise.lower + noise.upper:
            return replace(sentence, words=tuple(map(str.upper, sentence.words)), passage=None, passage_start=0)
        return sentence

    return [[list(map(changed, unit)) for unit in batch] for batch in batches]


def sentence_batches(documents: Sequence[Unit], shuffler: random.Random, *, batch_sentences: int) -> list[list[Unit]]:
    """Return batches of single sentences of similar length, in random order."""
    units = [[sentence] for document in documents for sentence in document if _teaches([sentence])]
    shuffler.shuffle(units)
    pool = batch_sentences * _POOL_BATCHES
    batches = [
        batch
        for start in range(0, len(units), pool)
        for batch in _chunks(sorted(units[start : start + pool], key=lambda unit: len(unit[0].words)), batch_sentences)
    ]
    shuffler.shuffle(batches)
    return [list(batch) for batch in batches]


def document_batches(
    documents: Sequence[Unit], shuffler: random.Random, *, batch_sentences: int, document_sentences: int
) -> list[list[Unit]]:
    """Return batches of whole documents in random order, with at least ``batch_sentences`` sentences each but the last.

    Documents of more than ``document_sentences`` sentences are split.
    """
    units = [part for document in documents for part in _chunks(document, document_sentences) if _teaches(part)]
    shuffler.shuffle(units)
    return list(in_blocks(units, len, least=batch_sentences))


def split_long(sentence: Sentence, longest: int, scheme: LabelScheme) -> list[Sentence]:
    """Split a sentence of more than ``longest`` words; an entity across a boundary becomes two."""
    if len(sentence.words) <= longest:
        return [sentence]
    pieces = []
    for start in range(0, len(sentence.words), longest):
        piece = sentence.part(start, start + longest)
        if scheme.has_entities and piece.labels and piece.labels[0].startswith("I-"):
            piece = replace(piece, labels=(f"B-{piece.labels[0][2:]}", *piece.labels[1:]))
        pieces.append(piece)
    return pieces


def _teaches(unit: Unit) -> bool:
    """Return whether any label of a unit is known; a sentence without is read only beside others of its document."""
    return any(sentence.known is None or any(sentence.known) for sentence in unit)


def _chunks(items: Sequence[_Item], size: int) -> list[Sequence[_Item]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


class OptimizerConfig(Config):
    """An optimizer and its learning-rate schedule."""

    kind: Literal["sgd", "adam", "adamw", "nadam"] = "adam"
    learning_rate: float = Field(default=1e-3, gt=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """SGD only."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW does not apply it to vectors, which are biases and weights of normalizations."""
    epsilon: float = Field(default=1e-8, gt=0)
    """Not used by SGD."""
    schedule: Literal["constant", "inverse", "linear", "cosine_restarts"] = "constant"
    """inverse: learning_rate / (1 + decay * epoch); linear: up over the share `warmup` of all steps, then down to 0;
    cosine_restarts: down half a cosine in each cycle of epochs, then restarted (Loshchilov and Hutter, 2017)."""
    decay: float = Field(default=0.05, ge=0)
    warmup: float = Field(default=0.1, ge=0, lt=1)
    first_cycle: int = Field(default=10, ge=1)
    """Epochs of the first cycle of cosine_restarts."""
    cycle_growth: int = Field(default=2, ge=1)
    """Length of each cycle relative to the previous one."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """Factor from the learning rate of each layer of a tuned encoder to that of the layer below; the top layer has
    `learning_rate`, the embeddings have the lowest (Howard and Ruder, ACL 2018, section 3.2)."""


def build_optimizers(
    groups: Mapping[str, list[nn.Parameter]],
    configs: Mapping[str, OptimizerConfig],
    *,
    layers_above: Mapping[nn.Parameter, int] | None = None,
) -> dict[str, torch.optim.Optimizer]:
    """Build an optimizer for each parameter group; raise ConfigError if configurations have names of other groups.

    ``layers_above`` has the number of layers above that of each parameter; 0 for parameters that are missing.
    """
    if set(groups) != set(configs):
        raise ConfigError(f"fit.optimizers: expected the groups {sorted(groups)}, got {sorted(configs)}")
    return {name: _build(parameters, configs[name], layers_above or {}) for name, parameters in groups.items()}


def learning_rate(config: OptimizerConfig, *, epoch: int, step: int, steps: int) -> float:
    """Return the learning rate of a step of ``steps`` in the whole training; epoch and step are 0-based."""
    if config.schedule == "inverse":
        return config.learning_rate / (1.0 + config.decay * epoch)
    if config.schedule == "linear":
        warm = config.warmup * steps
        share = (step + 1) / warm if step + 1 <= warm else (steps - step) / max(1.0, steps - warm)
        # Batches of whole documents differ by epoch, and may be more than was foreseen.
        return config.learning_rate * min(1.0, max(0.0, share))
    if config.schedule == "cosine_restarts":
        cycle = config.first_cycle
        while epoch >= cycle:
            epoch, cycle = epoch - cycle, cycle * config.cycle_growth
        return config.learning_rate * (1.0 + math.cos(math.pi * epoch / cycle)) / 2.0
    return config.learning_rate


def _build(
    parameters: list[nn.Parameter], config: OptimizerConfig, layers_above: Mapping[nn.Parameter, int]
) -> torch.optim.Optimizer:
    groups = _torch_groups(parameters, config, layers_above)
    if config.kind == "sgd":
        return torch.optim.SGD(groups, lr=config.learning_rate, momentum=config.momentum)
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "nadam": torch.optim.NAdam}
    optimizer: torch.optim.Optimizer = kinds[config.kind](groups, lr=config.learning_rate, eps=config.epsilon)
    return optimizer


def _torch_groups(
    parameters: list[nn.Parameter], config: OptimizerConfig, layers_above: Mapping[nn.Parameter, int]
) -> list[dict[str, Any]]:
    """Group parameters of equal rate and decay, in their order."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in parameters:
        factor = config.layer_decay ** layers_above.get(parameter, 0)
        decays = config.kind != "adamw" or parameter.dim() > 1
        groups.setdefault((factor, config.weight_decay if decays else 0.0), []).append(parameter)
    return [
        {"params": members, "layer_factor": factor, "weight_decay": decay}
        for (factor, decay), members in groups.items()
    ]


# Features of an encoder are kept for this many training words (3 GB for 384 values a word), and computed again in every
# epoch for the others.
_KEPT_WORDS = 2**21

STATE_NAME = "state.safetensors"

Documents = Sequence[Sequence[Sentence]]


class FitConfig(Config):
    """How a tagger is trained."""

    epochs: int = Field(default=10, ge=1)
    seed: int = 1
    batch_sentences: int = Field(default=32, ge=1)
    """Sentences per batch; a tagger that learns from documents gets whole documents until there are as many."""
    document_sentences: int = Field(default=64, ge=1)
    """Longer training documents are split into parts of this many sentences, if the tagger learns from documents."""
    optimizers: Mapping[str, OptimizerConfig] = {"tagger": OptimizerConfig()}
    """One per parameter group of the tagger."""
    clip_norm: float | None = Field(default=5.0, gt=0)
    """Maximum norm of the gradient over all parameters; None for no clipping."""
    patience: int | None = Field(default=None, ge=1)
    """Epochs without a better dev score after which training stops, once there was one above 0; None trains all
    epochs."""
    case_noise: CaseNoise | None = None
    """Sentences to read in another case, chosen again in every epoch, so that a tagger does not rely on it."""
    precision: Precision = "fp32"
    """bf16 computes networks in bfloat16, several times as fast on a processor that has it, and refused on others;
    weights and optimizers stay in fp32, and so do probabilities and CRFs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochResult:
    """The result of an epoch; scores in percent, times in seconds."""

    epoch: int
    """1-based."""
    loss: float
    """Mean over batches."""
    dev_f1: float | None = None
    """Of strict spans, like precision and recall; None for a tagger of token labels. All scores are means over the dev
    corpora."""
    dev_precision: float | None = None
    dev_recall: float | None = None
    draft_f1: float | None = None
    """Score of stage one alone; equal to dev_f1 for a tagger of one stage."""
    dev_accuracy: float | None = None
    """Share of correct token labels; None for a tagger of entities."""
    draft_accuracy: float | None = None
    threshold: float | None
    """The best on the dev set, in nats; None for a tagger of one stage."""
    seconds: float
    dev_seconds: float
    learning_rates: Mapping[str, float]

    @property
    def measure(self) -> str:
        """The name of the score: ``F1``, or ``accuracy`` for token labels."""
        return "F1" if self.dev_accuracy is None else "accuracy"

    @property
    def dev_score(self) -> float:
        """The score that chooses the best epoch."""
        return self.dev_f1 if self.dev_f1 is not None else self.dev_accuracy or 0.0

    @property
    def draft_score(self) -> float:
        """The score of stage one alone."""
        return self.draft_f1 if self.draft_f1 is not None else self.draft_accuracy or 0.0


HISTORY = TypeAdapter(list[EpochResult])


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochProgress:
    """How far an epoch is."""

    epoch: int
    """1-based."""
    epochs: int
    words_done: int
    words: int
    loss: Callable[[], float]
    """Returns the loss of the latest batch, once a GPU has computed it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FitResult:
    """The result of a training; ``bundle`` is the folder of the best epoch's tagger."""

    best: EpochResult
    epochs: tuple[EpochResult, ...]
    bundle: Path


def fit(
    tagger: Tagger,
    train: Documents,
    dev: Sequence[Documents],
    config: FitConfig,
    folder: Path,
    *,
    on_epoch: Callable[[EpochResult], None] | None = None,
    resume: bool = True,
    on_batch: Callable[[EpochProgress], None] | None = None,
    keep_last: bool = False,
) -> FitResult:
    """Train a tagger on the device it is on.

    Args:
        dev: one corpus or several; the score that chooses epoch and threshold is the mean over corpora, so that a large
            one counts no more than a small one.
        folder: where the state of the last epoch and the bundle of the best one are written.
        resume: continue from the state in ``folder``, if there is one; the result is that of an uninterrupted training.
        keep_last: the last epoch is the best one, whatever its score, as where dev lacks a type that is learned.

    Raises:
        ConfigError: when the optimizers do not match the tagger, the state is that of another training, or the device
            cannot train in the configured precision.
    """
    if config.precision == "bf16":
        check_bf16(tagger.device)
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(config.seed)
    trainer = _Trainer(tagger, train, config)
    history = trainer.restore(folder / STATE_NAME) if resume else []
    tagger.keep_features(first_documents(trainer.documents, _KEPT_WORDS))
    for corpus in dev:
        tagger.keep_features(corpus)
    for epoch in range(len(history), config.epochs):
        if _out_of_patience(history, config.patience):
            break
        started = time.monotonic()
        loss = trainer.run_epoch(epoch, on_batch)
        trained = time.monotonic()
        scores, threshold = _score(tagger, dev)
        result = EpochResult(
            epoch=epoch + 1,
            loss=loss,
            **scores,
            threshold=threshold,
            seconds=trained - started,
            dev_seconds=time.monotonic() - trained,
            learning_rates=trainer.learning_rates(),
        )
        if keep_last or not history or result.dev_score > max(entry.dev_score for entry in history):
            save_tagger(tagger, folder / BUNDLE_NAME)
        history.append(result)
        trainer.save(folder / STATE_NAME, history)
        if on_epoch is not None:
            on_epoch(result)
    best = max(history, key=lambda entry: entry.dev_score) if not keep_last else history[-1]
    return FitResult(best=best, epochs=tuple(history), bundle=folder / BUNDLE_NAME)


def check_bf16(device: torch.device) -> None:
    """Raise ConfigError if a processor, with this build of torch, cannot train a tiny LSTM in bfloat16."""
    lstm = torch.nn.LSTM(1, 1, batch_first=True, bidirectional=True).to(device)
    try:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            states, _ = lstm(torch.zeros(1, 2, 1, device=device))
        states.float().sum().backward()
    except RuntimeError as error:
        reason = str(error).partition(".")[0]
        raise ConfigError(
            f"fit.precision: torch {torch.__version__} cannot train an LSTM in bf16 on this processor "
            f"({device.type}: {reason}); use fit.precision=fp32"
        ) from error


def _score(tagger: Tagger, dev: Sequence[Documents]) -> tuple[dict[str, float], float | None]:
    """Return the scores of final labels and drafts, by their names in EpochResult, and the threshold.

    Each is a mean over corpora. For a tagger of two stages this also sets the tagger's threshold to the best one.
    """
    tagger.eval()
    tables = [tagger.tabulate(corpus, PredictOptions(threshold=REFINE_ALL)) for corpus in dev]
    threshold = None
    if tagger.threshold is not None:
        curves = [sweep_threshold(table, corpus, tagger.vocabulary) for table, corpus in zip(tables, dev, strict=True)]
        threshold = best_threshold(curves)
        tagger.set_threshold(threshold)
    scores = [
        _score_corpus(table, corpus, tagger, threshold=threshold) for table, corpus in zip(tables, dev, strict=True)
    ]
    return {name: sum(score[name] for score in scores) / len(scores) for name in scores[0]}, threshold


def _score_corpus(table: TokenTable, dev: Documents, tagger: Tagger, *, threshold: float | None) -> dict[str, float]:
    gold = gold_sequences(dev)
    labels = table.label if threshold is None else labels_at(table, threshold)
    scheme = tagger.vocabulary.scheme
    stages = [label_sequences(column, dev, tagger.vocabulary) for column in (labels, table.draft)]
    final, draft = (span_scores(gold, predicted, scheme=scheme)["all"] for predicted in stages)
    if not scheme.has_entities:
        return {"dev_accuracy": final.recall, "draft_accuracy": draft.recall}
    return {"dev_f1": final.f1, "dev_precision": final.precision, "dev_recall": final.recall, "draft_f1": draft.f1}


def _out_of_patience(history: Sequence[EpochResult], patience: int | None) -> bool:
    if patience is None or len(history) <= patience:
        return False
    best = max(range(len(history)), key=lambda number: history[number].dev_score)
    # With few labels the first epochs may find nothing at all.
    return history[best].dev_score > 0 and len(history) - 1 - best >= patience


class _Trainer:
    """A tagger with its optimizers; an epoch's batches are a pure function of seed and epoch."""

    def __init__(self, tagger: Tagger, train: Documents, config: FitConfig) -> None:
        self._tagger = tagger
        self._config = config
        longest, scheme = tagger.config.window_words, tagger.vocabulary.scheme
        self.documents = [
            [part for sentence in document for part in split_long(sentence, longest, scheme)]
            for document in tagger.with_passages(train)
        ]
        encoder = tagger.tuned_encoder
        self._optimizers = build_optimizers(
            tagger.parameter_groups(),
            config.optimizers,
            layers_above=encoder.layers_above() if encoder is not None else None,
        )
        self._step = 0
        self._steps = config.epochs * len(self._plan(0))

    def run_epoch(self, epoch: int, on_batch: Callable[[EpochProgress], None] | None) -> float:
        """Train on every sentence once and return the mean loss of the batches."""
        self._tagger.train()
        plan = self._plan(epoch)
        losses: list[Callable[[], float]] = []
        words = [sum(len(sentence.words) for unit in units for sentence in unit) for units in plan]
        done = EpochProgress(epoch=epoch + 1, epochs=self._config.epochs, words_done=0, words=sum(words), loss=float)
        for units, count in zip(plan, words, strict=True):
            documents = [number for number, unit in enumerate(units) for _ in unit]
            batch = self._tagger.encode([sentence for unit in units for sentence in unit], documents=documents)
            losses.append(self._train_batch(batch, epoch))
            done = replace(done, words_done=done.words_done + count, loss=losses[-1])
            if on_batch is not None:
                on_batch(done)
        return sum(loss() for loss in losses) / max(1, len(losses))

    def learning_rates(self) -> dict[str, float]:
        """Return the learning rate of each optimizer in the last step; for a tuned encoder, that of its top layer."""
        return {
            name: max(float(group["lr"]) for group in optimizer.param_groups)
            for name, optimizer in self._optimizers.items()
        }

    def save(self, path: Path, history: Sequence[EpochResult]) -> None:
        """Atomically write weights, optimizers, random state and history."""
        tensors = {f"tagger/{name}": value.cpu().contiguous() for name, value in self._tagger.state_dict().items()}
        tensors["random"] = torch.get_rng_state()
        if self._tagger.device.type == "cuda":
            tensors["random_cuda"] = torch.cuda.get_rng_state(self._tagger.device)
        for name, optimizer in self._optimizers.items():
            for number, state in optimizer.state_dict()["state"].items():
                for key, value in state.items():
                    tensor = value if isinstance(value, Tensor) else torch.tensor(float(value or 0.0))
                    tensors[f"optimizer/{name}/{number}/{key}"] = tensor.cpu().contiguous().clone()
        metadata = {
            "fit": self._config.model_dump_json(),
            "history": json.dumps([asdict(entry) for entry in history]),
            "threshold": json.dumps(self._tagger.threshold),
            "step": str(self._step),
        }
        write_tensors(tensors, path, metadata=metadata)

    def restore(self, path: Path) -> list[EpochResult]:
        """Restore what ``save`` wrote, if it exists, and return the history."""
        if not path.exists():
            return []
        try:
            return self._restore(path)
        except ConfigError:
            raise
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise ConfigError(
                f"{path}: expected the state of a training, got {error}; remove the file to start again"
            ) from error

    def _restore(self, path: Path) -> list[EpochResult]:
        with safe_open(path, framework="pt") as stored:
            metadata = stored.metadata()
            if metadata["fit"] != self._config.model_dump_json():
                raise ConfigError(
                    f"{path}: expected the state of a training with this configuration, got that of another; "
                    "train into another folder, or without resuming"
                )
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        self._tagger.load_state_dict({name[7:]: value for name, value in tensors.items() if name.startswith("tagger/")})
        torch.set_rng_state(tensors["random"])
        if "random_cuda" in tensors and self._tagger.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random_cuda"], self._tagger.device)
        for name, optimizer in self._optimizers.items():
            _restore_optimizer(optimizer, tensors, prefix=f"optimizer/{name}/")
        self._step = int(metadata["step"])
        threshold = json.loads(metadata["threshold"])
        if threshold is not None:
            self._tagger.set_threshold(threshold)
        return HISTORY.validate_json(metadata["history"])

    def _train_batch(self, batch: Batch, epoch: int) -> Callable[[], float]:
        """Take a step, and return what returns the loss."""
        for name, optimizer in self._optimizers.items():
            rate = learning_rate(self._config.optimizers[name], epoch=epoch, step=self._step, steps=self._steps)
            for group in optimizer.param_groups:
                group["lr"] = rate * group["layer_factor"]
            optimizer.zero_grad(set_to_none=True)
        with self._tagger.autocast(self._config.precision):
            loss = self._tagger.loss(batch)
        loss.backward()
        if self._config.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._tagger.parameters(), self._config.clip_norm)
        for optimizer in self._optimizers.values():
            optimizer.step()
        self._step += 1
        found = fetch(loss.detach())
        return lambda: float(found())

    def _plan(self, epoch: int) -> list[list[Unit]]:
        """Return the batches of an epoch, each a list of document parts or of single sentences."""
        shuffler = random.Random(f"{self._config.seed}/{epoch}")
        documents = [[sentence for sentence in document if sentence.words] for document in self.documents]
        size = self._config.batch_sentences
        if self._tagger.learns_from_documents:
            longest = self._config.document_sentences
            plan = document_batches(documents, shuffler, batch_sentences=size, document_sentences=longest)
        else:
            plan = sentence_batches(documents, shuffler, batch_sentences=size)
        noise = self._config.case_noise
        return plan if noise is None else change_case(plan, noise, shuffler)


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], *, prefix: str) -> None:
    state: dict[int, dict[str, Any]] = {}
    for name, value in tensors.items():
        if name.startswith(prefix):
            number, key = name.removeprefix(prefix).split("/")
            state.setdefault(int(number), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
