"""What the document memory holds in training beside drafts, so that words learn to follow certain slots."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from concord.models.data.batch import Batch
from concord.models.data.sentence import Sentence
from concord.models.data.soft_labels import allowed_labels
from concord.models.schemes import BIOES
from concord.models.two_stage.refine_network import RefineNetwork

Build = Callable[..., Any]
Record = Callable[..., Any]
Documents = list[list[Sentence]]


def read_in_training(tagger: Any, documents: Documents, record_calls: Record) -> tuple[Batch, Tensor, Tensor]:
    """Return the only batch of stage two, with the drafts of its sentences and of its memory."""
    numbers = [number for number, document in enumerate(documents) for _ in document]
    batch = tagger.encode([sentence for document in documents for sentence in document], documents=numbers)
    with record_calls(RefineNetwork) as calls:
        tagger.train().loss(batch)
    [(_, (part, _, own, contents))] = calls
    return part, own[part.mask], contents.probabilities[contents.slots[part.mask]]


def test_certain_slots_hold_gold_labels_in_half_of_the_documents(build: Build, record_calls: Record) -> None:
    tagger = build("doc_uanet", memory={"certain_slots": 1.0, "slots": 1})
    document = [Sentence(words=("Ford", "Ford"), labels=("B-PER", "B-ORG"))]
    for _ in range(8):
        part, own, slots = read_in_training(tagger, [document] * 10, record_calls)
        other = part.gold.flip(1)[part.mask]
        certain = slots[:, 0].max(dim=-1).values == 1
        assert torch.equal(slots[:, 0].argmax(dim=-1)[certain], other[certain])
        assert 0 < int(certain.sum()) < 20
        assert torch.equal(certain[::2], certain[1::2])
        assert bool((own.max(dim=-1).values < 1).all())


def test_words_whose_label_is_open_are_never_certain(build: Build, record_calls: Record) -> None:
    tagger = build("doc_uanet", memory={"certain_slots": 1.0, "slots": 1})
    labels = ("B-PER", "B-PER", "O", "O")
    open_outside = allowed_labels(labels, tagger.vocabulary.labels, lacks=["ORG"], scheme=BIOES)
    document = [Sentence(words=("Ford", "Ford", "a", "a"), labels=labels, soft=open_outside)]
    _, _, slots = read_in_training(tagger, [document] * 40, record_calls)
    certain = (slots[:, 0].max(dim=-1).values == 1).view(-1, 4)
    assert bool(certain[:, :2].any())
    assert not bool(certain[:, 2:].any())


def test_hidden_drafts_are_those_of_recurring_words(build: Build, record_calls: Record) -> None:
    tagger = build("doc_uanet", memory={"hidden_drafts": 0.5})
    document = [Sentence(words=("Ford", "left", "Ford", "here"), labels=("B-PER", "O", "B-PER", "O"))]
    _, own, slots = read_in_training(tagger, [document] * 20, record_calls)
    hidden = (own == own[:, :1]).all(dim=-1).view(-1, 4)
    assert 0 < int(hidden[:, ::2].sum()) < 40
    assert not bool(hidden[:, 1::2].any())
    assert not bool((slots == slots[..., :1]).all(dim=-1).any())


def test_nothing_is_certain_or_hidden_outside_of_training(build: Build, documents: Documents) -> None:
    plain, tagger = (build("doc_uanet", memory=memory) for memory in ({}, {"certain_slots": 1.0, "hidden_drafts": 1.0}))
    assert tagger.predict_documents(documents) == plain.predict_documents(documents)
    batch = tagger.encode(documents[0], documents=[0] * len(documents[0]))
    losses = []
    for one in (plain, tagger):
        torch.manual_seed(4)
        losses.append(float(one.loss(batch).detach()))
    assert losses[0] == losses[1]


def test_drafts_of_a_sentence_replace_those_of_stage_one_but_not_its_states(build: Build, record_calls: Record) -> None:
    tagger = build("doc_uanet", memory={"slots": 1})
    labels = len(tagger.vocabulary.labels)
    drafts = np.random.default_rng(1).dirichlet(np.ones(labels), size=3).astype(np.float16)
    plain = Sentence(words=("Ford", "left", "Ford"), labels=("B-PER", "O", "B-PER"))
    seen = {}
    for name, first in (("own", plain), ("held out", replace(plain, drafts=drafts))):
        batch = tagger.encode([first, plain], documents=[0, 1])
        torch.manual_seed(4)
        with record_calls(RefineNetwork) as calls:
            tagger.train().loss(batch)
        [(_, (_, _, own, contents))] = calls
        seen[name] = own, contents.probabilities, contents.hidden
    expected = torch.from_numpy(drafts).float()
    assert torch.equal(seen["held out"][0][0], expected)
    assert torch.equal(seen["held out"][0][1], seen["own"][0][1])
    assert torch.equal(seen["held out"][1][:2], expected[[0, 2]])
    assert torch.equal(seen["held out"][1][2:], seen["own"][1][2:])
    assert torch.equal(seen["held out"][2], seen["own"][2])


def test_part_of_a_sentence_has_the_drafts_of_its_words() -> None:
    drafts = np.arange(12, dtype=np.float16).reshape(4, 3)
    part = Sentence(words=("a", "b", "c", "d"), drafts=drafts).part(1, 3)
    assert part.drafts is not None
    assert np.array_equal(part.drafts, drafts[1:3])
    assert part == Sentence(words=("b", "c"))
