"""The two stages of entities_en, trained one after the other with the encoder's states kept.

Stage one learns from gold corpora and from open texts that the teachers labelled. Stage two learns from the gold
corpora, with the drafts of stage ones that never saw the document; the states that address the memory are those of
stage one itself.
"""

import random
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from concord.models.data.sentence import Sentence
from concord.models.two_stage.draft_network import DraftNetwork
from concord.models.two_stage.tagger import TwoStageTagger
from research.entities_en.features import Features
from research.entities_en.learning import Batch, Documents, learn, repeated

_BATCH_WORDS, _BATCH_SENTENCES, _SHUFFLED = 2000, 64, 8192
_DRAFTED_WORDS = 8000


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


@torch.inference_mode()
def draft(
    network: DraftNetwork, tagger: TwoStageTagger, sentences: Sequence[Sentence], features: Features
) -> dict[int, Tensor]:
    """Return the probabilities of the words of each sentence, by its id: ``(T, L)``, fp16."""
    samples = network.lstm.draw_samples(tagger.config.samples, tagger.config.sample_seed)
    found: dict[int, Tensor] = {}
    batch: list[Sentence] = []

    def flush() -> None:
        drafted = network.draft(
            tagger.encode(batch), features.batch(batch), samples, samples_above=tagger.config.samples_above
        )
        for sentence, rows in zip(batch, drafted.probabilities.half().cpu(), strict=True):
            found[id(sentence)] = rows[: len(sentence.words)].clone()
        batch.clear()

    for sentence in sorted(sentences, key=lambda sentence: len(sentence.words)):
        if batch and (len(batch) + 1) * len(sentence.words) > _DRAFTED_WORDS:
            flush()
        batch.append(sentence)
    flush()
    return found


def held_out_drafts(
    tagger: TwoStageTagger,
    corpora: Mapping[str, Documents],
    labelled: Sequence[Sentence],
    targets: Features,
    features: Features,
    *,
    folds: int,
    times: Mapping[str, float],
) -> Tensor:
    """Return drafts of the gold corpora by stage ones that learned from the other folds and from labelled texts.

    The probabilities are those of all words in order, shape ``(N, L)``, fp16.

    All of them go on from one that learned from labelled texts alone, so that one epoch is enough.
    """
    documents = [document for corpus in corpora.values() for document in corpus]
    places = random.Random(11).sample(range(len(documents)), len(documents))
    fold = {id(documents[place]): number % folds for number, place in enumerate(places)}
    base = _new_stage_one(tagger)
    train_stage_one(base, tagger, labelled, targets, features, rate=2e-3, seed="base", name="labelled texts")
    drafts: dict[int, Tensor] = {}
    for number in range(folds):
        network = _new_stage_one(tagger)
        network.load_state_dict(base.state_dict())
        inside = {name: [one for one in corpus if fold[id(one)] != number] for name, corpus in corpora.items()}
        draw = random.Random(f"fold{number}")
        sentences = repeated(inside, times) + draw.sample(labelled, len(labelled) // 5)
        train_stage_one(
            network,
            tagger,
            sentences,
            targets,
            features,
            rate=1.5e-3,
            seed=f"fold{number}",
            name=f"without fold {number}",
        )
        held_out = [sentence for document in documents if fold[id(document)] == number for sentence in document]
        drafts.update(draft(network, tagger, held_out, features))
    return torch.cat([drafts[id(sentence)] for document in documents for sentence in document])


def _new_stage_one(tagger: TwoStageTagger) -> DraftNetwork:
    torch.manual_seed(77)
    config, width = tagger.config, tagger.encoder_width
    return DraftNetwork(config.draft_representation, config.lstm, tagger.vocabulary, encoder_width=width).to(
        tagger.device
    )
