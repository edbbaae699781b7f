"""Taggers that read another encoder than the one that they were trained over.

A linear map of least squares brings the new encoder's states to the old one's, and is multiplied into the first weights
that read them. What a tagger has learned is kept as far as the map holds: of the variance of MiniLM's states, the
bundled encoder's explain about half, and the tagger has 2 F1 less before any training.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from concord.models.data.batch import Forms
from concord.models.taggers.bilstm_softmax import BiLstmSoftmax
from concord.models.taggers.doc_uanet import DocUaNet
from concord.models.taggers.one_stage import BiLstmTaggerConfig
from concord.models.words.encoder_config import BUNDLED_NAME
from concord.models.words.form_vectors import FormVectors

_MAP_FORMS = 40_000
_RIDGE = 0.01
"""Of each state's own variance: training drops states out, so no two may be set against each other."""


def linear_map(sources: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return the map of least squares from rows to rows, ``(N, S)`` to ``(N, T)``.

    Returns:
        A matrix, ``(T, S)``, and an offset, ``(T,)``, float32; the share of the targets' variance that they explain.
    """
    centre, goal = sources.double().mean(dim=0), targets.double().mean(dim=0)
    a, b = sources.double() - centre, targets.double() - goal
    square = a.T @ a
    square += _RIDGE * square.diagonal().diag()
    matrix = torch.linalg.solve(square, a.T @ b).T
    left = (b - a @ matrix.T).square().sum() / b.square().sum()
    return matrix.float(), (goal - matrix @ centre).float(), 1 - float(left)


@torch.no_grad()
def move_tagger(earlier: DocUaNet, sources: Tensor, targets: Tensor) -> tuple[DocUaNet, float]:
    """Return a tagger that reads the bundled encoder, given its states and those of the earlier one for some words."""
    settings = {**earlier.config.model_dump(), "encoder": {"source": BUNDLED_NAME}}
    tagger = DocUaNet(type(earlier.config).from_mapping(settings), earlier.vocabulary)
    tagger.load_state_dict(earlier.state_dict())
    matrix, offset, explained = linear_map(sources, targets)
    for representation in (tagger.draft_network.representation, tagger.refine_network.representation):
        projection = representation.projection
        if projection is None:
            raise TypeError("expected a tagger that projects the encoder's states")
        projection.bias.add_(projection.weight @ offset)
        projection.weight.copy_(projection.weight @ matrix)
    return tagger.eval(), explained


@torch.no_grad()
def move_small(earlier: BiLstmSoftmax, words: Sequence[str]) -> tuple[BiLstmSoftmax, float]:
    """Return a tagger whose form vectors are the bundled encoder's, fitted on the words of a text."""
    settings = earlier.config.model_dump()
    dimension = settings["representation"]["form_vectors"]["dimension"]
    settings["representation"]["form_vectors"] = {"encoder": {"source": BUNDLED_NAME}, "dimension": dimension}
    tagger = BiLstmSoftmax(BiLstmTaggerConfig.from_mapping(settings), earlier.vocabulary)
    old, new = _form_vectors(earlier), _form_vectors(tagger)
    new.fit(words)
    forms = [form for form, _ in Counter(words).most_common(_MAP_FORMS)]
    matrix, offset, explained = linear_map(_vectors(new, forms), _vectors(old, forms))
    state = {name: value for name, value in earlier.state_dict().items() if "form_vectors" not in name}
    for direction in ("l0", "l0_reverse"):
        weight = state[f"lstm.lstm.weight_ih_{direction}"].clone()
        columns = weight[:, -dimension:].clone()  # form vectors stand last in a word's vector
        weight[:, -dimension:] = columns @ matrix
        state[f"lstm.lstm.weight_ih_{direction}"] = weight
        state[f"lstm.lstm.bias_ih_{direction}"] = state[f"lstm.lstm.bias_ih_{direction}"] + columns @ offset
    fitted = {f"representation.form_vectors.{name}": value for name, value in new.state_dict().items()}
    tagger.load_state_dict(state | fitted)
    return tagger.eval(), explained


def _form_vectors(tagger: BiLstmSoftmax) -> FormVectors:
    found = tagger.representation.form_vectors
    if found is None:
        raise TypeError("expected a tagger with form vectors")
    return found.eval()


def _vectors(module: FormVectors, forms: Sequence[str]) -> Tensor:
    """Return the vectors of forms, shape ``(F, D)``; nothing but the forms themselves is read."""
    numbers = torch.arange(len(forms))
    rows = {form: row for row, form in enumerate(forms)}
    vectors: Tensor = module(Forms(rows=rows, numbers=numbers, characters=numbers[:, None], cases=numbers))
    return vectors
