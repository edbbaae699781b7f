"""Stage one of entities_en: it learns from gold corpora and from open texts that the teachers labelled."""

import random
from collections.abc import Sequence

from torch import Tensor

from concord.models.data.sentence import Sentence
from concord.models.taggers.two_stage.draft_network import DraftNetwork
from concord.models.taggers.two_stage.tagger import TwoStageTagger
from research.entities_en.features import Features
from research.entities_en.learning import Batch, learn

_BATCH_WORDS, _BATCH_SENTENCES, _SHUFFLED = 2000, 64, 8192


def like_lengths(sentences: Sequence[Sentence], draw: random.Random) -> list[Batch]:
    """Return shuffled batches of sentences of like lengths."""
    shuffled = draw.sample(sentences, len(sentences))
    batches: list[Batch] = []
    for start in range(0, len(shuffled), _SHUFFLED):
        batch: list[Sentence] = []
        for sentence in sorted(shuffled[start : start + _SHUFFLED], key=lambda sentence: len(sentence.words)):
            if len(batch) == _BATCH_SENTENCES or (len(batch) + 1) * len(sentence.words) > _BATCH_WORDS:
                batches.append(batch)
                batch = []
            batch.append(sentence)
        batches.append(batch)
    draw.shuffle(batches)
    return [batch for batch in batches if batch]


def train_stage_one(
    network: DraftNetwork,
    tagger: TwoStageTagger,
    sentences: Sequence[Sentence],
    targets: Features,
    features: Features,
    *,
    rate: float,
    seed: str,
    name: str,
) -> None:
    """Read the sentences once; targets have a row of label probabilities for each word."""

    def loss_of(batch: Batch) -> Tensor:
        logits, _ = network(tagger.encode(batch), features.batch(batch))
        loss: Tensor = -(logits.log_softmax(dim=-1) * targets.batch(batch)).sum() / _BATCH_SENTENCES
        return loss

    batches = like_lengths(sentences, random.Random(seed))
    learn(network, [{"params": list(network.parameters()), "lr": rate}], [batches], loss_of, name=name, warmup=0.05)
