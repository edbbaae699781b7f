"""Labels of characters, against Stanza's own network over the same windows."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from concord.pipeline.parsing import stanza_tokenizer
from concord.pipeline.parsing.stanza_parser import StanzaParser
from concord.pipeline.parsing.stanza_tokenizer import TokenizerNetwork
from concord.pipeline.parsing.tokens import Paragraph, split_paragraphs

CPU = torch.device("cpu")
PROSE = (
    "The ferry to Harwich leaves at 7:45 p.m.; bring $1,250.50 and call (713) 555-0142 before 28/10/2004. Nobody, not "
    "even Karl, whose cousin's wedding it was, couldn't stay! See https://example.org/a/b?c=d \u2764\ufe0f \U0001f600. "
)
TEXTS = {
    "prose": PROSE * 3 + "\n\nAddress: 12 Quay Street\nFax: none\n\n" + PROSE,
    "one_character": "a\n\n.\n\n1\n\n\U0001f600\n\n \u4e2d",
    "long_paragraph": PROSE * 10,
    "two_windows": "x. " + PROSE * 25,
    "run_of_brackets": "(" * 1_000,
    "run_of_words": "buffalo " * 150,
    "no_white_space": "0123456789abcdef" * 80,
    "emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f" * 80,
}


def paragraphs_of(*texts: str) -> list[Paragraph]:
    return [paragraph for text in texts for paragraph in split_paragraphs(text)]


def both_labels(trainer: Any, paragraphs: Sequence[Paragraph]) -> tuple[list[list[int]], list[list[int]]]:
    """Return the labels of the tokenizer, and those where Stanza's network is run as it is."""
    ours, stanzas = TokenizerNetwork(trainer, CPU), TokenizerNetwork(trainer, CPU)
    assert ours._lstms
    stanzas._lstms = []
    with torch.inference_mode():
        found = [row.tolist() for row in ours.label(paragraphs, None)]
        return found, [row.tolist() for row in stanzas.label(paragraphs, None)]


@pytest.fixture
def trainer(plain: StanzaParser) -> Any:
    return plain._stanza._nlp.processors["tokenize"].trainer


@pytest.mark.slow
def test_labels_equal_those_of_stanza_and_do_not_depend_on_the_other_paragraphs(
    trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stanza_tokenizer, "_WINDOW", 4_000)
    trainer.model.eval()
    together, expected = both_labels(trainer, paragraphs_of(*TEXTS.values()))
    assert together == expected
    network = TokenizerNetwork(trainer, CPU)
    with torch.inference_mode():
        alone = [row.tolist() for text in TEXTS.values() for row in network.label(paragraphs_of(text), None)]
    assert together == alone


def test_batches_hold_all_windows_within_limits(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stanza_tokenizer, "_BATCH_CHARACTERS", 100)
    windows = [stanza_tokenizer._Window(number, 0, length) for number, length in enumerate([30, 120, 1, 60, 50, 9])]
    network = TokenizerNetwork(trainer, CPU)
    batches = [[window.end for window in batch] for batch in network._batches(windows)]
    assert batches == [[120], [60], [50, 30, 9, 1]]
    network._lstms = []
    monkeypatch.setattr(stanza_tokenizer, "_WINDOW", 100)
    assert [[window.end for window in batch] for batch in network._batches(windows)] == [[120], [60], [50, 30], [9, 1]]


SHAPES: dict[str, Any] = {
    "emb_dim": 6,
    "hidden_dim": 8,
    "feat_dim": 9,
    "dropout": 0.3,
    "feat_dropout": 0.1,
    "tok_noise": 0.1,
    "rnn_layers": 1,
    "conv_res": None,
    "hierarchical": True,
    "hier_invtemp": 0.5,
    "use_mwt": True,
    "charlm_forward_file": None,
    "feat_funcs": [
        "space_before",
        "capitalized",
        "numeric",
        "end_of_para",
        "start_of_para",
        "labeled_field",
        "phone_id",
        "date_pattern",
        "currency",
    ],
}


def random_trainer(changes: Mapping[str, Any]) -> Any:
    """Return what the class under test reads of Stanza's trainer, with random weights that are far from zero."""
    from stanza.models.tokenization.model import Tokenizer
    from stanza.models.tokenization.vocab import Vocab

    options = {**SHAPES, **changes}
    vocabulary = Vocab([[(character, 0) for character in PROSE]], "en")
    network = Tokenizer(
        options, len(vocabulary), options["emb_dim"], options["hidden_dim"], options["dropout"], options["feat_dropout"]
    )
    generator = torch.Generator().manual_seed(2)
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return SimpleNamespace(model=network.eval(), args=options, vocab=vocabulary)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"use_mwt": False}, {"hier_invtemp": 0}])
def test_labels_of_random_networks_equal_those_of_stanza(changes: Mapping[str, Any]) -> None:
    found, expected = both_labels(random_trainer(changes), paragraphs_of(TEXTS["prose"], TEXTS["long_paragraph"], "a"))
    assert found == expected
    assert len({label for row in found for label in row}) == (5 if changes.get("use_mwt", True) else 3)


@pytest.mark.parametrize("changes", [{"conv_res": "1,3"}, {"hierarchical": False}, {"rnn_layers": 2}])
def test_other_networks_are_run_as_they_are(changes: Mapping[str, Any]) -> None:
    trainer = random_trainer(changes)
    network = TokenizerNetwork(trainer, CPU)
    assert not network._lstms
    [paragraph] = paragraphs_of(PROSE)
    with torch.inference_mode():
        [found] = network.label([paragraph], None)
        assert found.tolist() == labels_of(trainer, network, paragraph.characters).tolist()


def labels_of(trainer: Any, network: TokenizerNetwork, characters: str) -> NDArray[np.int64]:
    """Return the labels of one paragraph from Stanza's network, called with one position of padding."""
    units, features = network._characters.look_up(characters, opens=True, closes=True)
    padded = torch.from_numpy(np.append(units, network._characters.padding))[None]
    rows = torch.from_numpy(np.append(features, np.zeros((1, 9), dtype=np.float32), 0))[None]
    scores = trainer.model(padded, rows, [len(characters) + 1], [[*characters, "<PAD>"]])
    labels: NDArray[np.int64] = scores.argmax(2)[0, :-1].numpy()
    return labels
