"""Tagger and parser on packed rows, against Stanza's own forward pass of networks with random weights."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from concord.pipeline.parsing.packed_sentences import PackedSentences
from concord.pipeline.parsing.spanning_tree import best_tree
from concord.pipeline.parsing.stanza_networks import (
    ROOT_FORM,
    FormTable,
    ParserNetwork,
    TaggerNetwork,
    obstacle_to_networks,
)

CPU = torch.device("cpu")
SENTENCES = [
    ["Nobody", "saw", "the", "boats", "of", "Harwich", "?"],
    ["We", "walked", "home", "and", "slept", "!"],
    ["The", "boats", "sank"],
    ["Yes"],
]
SHAPES: dict[str, Any] = {
    "hidden_dim": 6,
    "num_layers": 2,
    "word_emb_dim": 5,
    "tag_emb_dim": 4,
    "transformed_dim": 3,
    "dropout": 0.3,
    "rec_dropout": 0,
    "word_dropout": 0.3,
    "deep_biaff_hidden_dim": 7,
    "deep_biaff_output_dim": 4,
    "composite_deep_biaff_hidden_dim": 5,
    "char": True,
    "char_emb_dim": 4,
    "char_hidden_dim": 5,
    "shorthand": "en",
    "char_num_layers": 1,
    "char_rec_dropout": 0,
    "charlm": None,
    "pretrain": False,
    "bert_model": None,
    "linearization": False,
    "distance": False,
    "lang": "en",
}


def vocabularies() -> Any:
    """Build the vocabularies of a small treebank."""
    from stanza.models.common.vocab import CharVocab
    from stanza.models.pos.vocab import FeatureVocab, MultiVocab, WordVocab

    tags = [("NOUN", "NN", "Number=Sing"), ("VERB", "VBD", "Tense=Past|Mood=Ind"), ("PUNCT", ".", "_")]
    rows = [[(form, *tags[len(form) % 3], form, 0, f"r{len(form)}") for form in words] for words in SENTENCES[:3]]
    return MultiVocab(
        {
            "char": CharVocab(rows, "en"),
            "word": WordVocab(rows, "en", lower=True),
            "upos": WordVocab(rows, "en", idx=1),
            "xpos": WordVocab(rows, "en", idx=2),
            "feats": FeatureVocab(rows, "en", idx=3),
            "lemma": WordVocab(rows, "en", idx=4, lower=True),
            "deprel": WordVocab(rows, "en", idx=6),
        }
    )


class Pretrained:
    """Vocabulary of pretrained embeddings: a row for each initial."""

    vocab: "Pretrained"

    def __init__(self) -> None:
        self.vocab = self

    def map(self, forms: list[str]) -> list[int]:
        return [4 + ord(form[0]) % 16 for form in forms]


def processor(network: torch.nn.Module, options: Mapping[str, Any], vocabulary: Any) -> Any:
    """Return what the classes under test read of a processor of Stanza, with weights that are far from zero."""
    generator = torch.Generator().manual_seed(3)
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.7
    pretrained = Pretrained() if options["pretrain"] else None
    trainer = SimpleNamespace(model=network.eval(), args=dict(options))
    return SimpleNamespace(trainer=trainer, vocab=vocabulary, pretrain=pretrained, config=dict(options))


class Rows:
    """A document as Stanza's data sets read it."""

    def __init__(self, sentences: list[list[list[str | None]]]) -> None:
        self._sentences = sentences

    def get(self, fields: list[str], *, as_sentences: bool) -> list[list[list[str | None]]]:
        assert as_sentences
        return [[[*word, *[None] * (len(fields) - len(word))] for word in words] for words in self._sentences]


def packed_forms(reader: Any) -> tuple[FormTable, NDArray[np.int64]]:
    table = FormTable([reader])
    return table, table.look_up([form for words in SENTENCES for form in words])


def tagged_by_stanza(given: Any, options: Mapping[str, Any]) -> list[list[list[int]]]:
    """Return the numbers of each word's tags, by sentence, from Stanza's data set and forward pass."""
    from stanza.models.pos.data import Dataset

    document = Rows([[[form] for form in words] for words in SENTENCES])
    dataset = Dataset(document, options, given.pretrain, vocab=given.vocab, evaluation=True)
    batch = dataset.collate_fn([dataset[index] for index in range(len(dataset))])
    _, found = given.trainer.model(
        batch.words,
        batch.words_mask,
        batch.wordchars,
        batch.wordchars_mask,
        None,
        batch.pretrained,
        batch.word_orig_idx,
        batch.lens,
        batch.word_lens,
        batch.text,
    )
    columns = torch.cat([part if part.dim() == 3 else part[:, :, None] for part in found], 2)
    tags: list[list[list[int]]] = [[] for _ in SENTENCES]
    for row, index in enumerate(batch.orig_idx):
        tags[index] = columns[row, : len(SENTENCES[index])].tolist()
    return tags


@pytest.mark.parametrize(
    ("share_hid", "changes"),
    [(True, {}), (False, {"char_bidirectional": True}), (True, {"char": False}), (False, {"pretrain": True})],
)
def test_tags_equal_those_of_stanza(share_hid: bool, changes: Mapping[str, Any]) -> None:
    from stanza.models.pos.model import Tagger

    options, vocabulary = {**SHAPES, **changes}, vocabularies()
    matrix = torch.randn(20, 6) if options["pretrain"] else None
    given = processor(Tagger(options, vocabulary, emb_matrix=matrix, share_hid=share_hid), options, vocabulary)
    with torch.inference_mode():
        reader = TaggerNetwork(given, CPU)
        table, rows = packed_forms(reader)
        layout = PackedSentences([len(words) for words in SENTENCES], device=CPU)
        found = reader.tag(table.vectors(0, rows[layout.source]), SENTENCES, layout).numpy()[layout.row].tolist()
        assert found == [tag for words in tagged_by_stanza(given, options) for tag in words]


def attached_by_stanza(given: Any, options: Mapping[str, Any]) -> list[list[int]]:
    """Return head and number of the relation of each word from Stanza's data set and forward pass."""
    from stanza.models.depparse.data import DataLoader, Dataset

    fields: list[list[list[str | None]]] = [
        [[form, "VERB", "NN", "_", form.lower()] for form in words] for words in SENTENCES
    ]
    dataset = Dataset(Rows(fields), options, given.pretrain, vocab=given.vocab, evaluation=True)
    batch = DataLoader.collate([dataset[index] for index in range(len(dataset))])
    tensors, (order, word_order, lengths, word_lengths, text) = batch[:11], batch[11:]
    arcs, relations, *_ = given.trainer.model.forward_scores(*tensors, word_order, lengths, word_lengths, text)
    found: list[list[list[int]]] = [[] for _ in SENTENCES]
    for row, (index, length) in enumerate(zip(order, lengths, strict=True)):
        heads = best_tree(arcs[row, :length, :length].numpy())
        best = relations[row].argmax(2)[torch.arange(length), torch.from_numpy(heads)] + 4
        found[index] = [[int(head), int(name)] for head, name in zip(heads[1:], best[1:], strict=True)]
    return [word for words in found for word in words]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_ufeats": False, "char": False},
        {"use_xpos": False},
        {"linearization": True, "distance": True},
        {"pretrain": True},
    ],
)
def test_trees_equal_those_of_stanza(changes: Mapping[str, Any]) -> None:
    from stanza.models.depparse.model import GraphParser

    options, vocabulary = {**SHAPES, **changes}, vocabularies()
    matrix = torch.randn(20, 6) if options["pretrain"] else None
    given = processor(GraphParser(options, vocabulary, emb_matrix=matrix), options, vocabulary)
    with torch.inference_mode():
        reader = ParserNetwork(given, CPU)
        table, rows = packed_forms(reader)
        lengths = np.array([len(words) for words in SENTENCES], dtype=np.int64)
        layout = PackedSentences((1 + lengths).tolist(), device=CPU)
        firsts = np.cumsum(lengths) - lengths
        lemmas = vocabulary["lemma"].map([form.lower() for words in SENTENCES for form in words])
        tag = [vocabulary["upos"].unit2id("VERB"), vocabulary["xpos"].unit2id("NN")]
        heads, relations = reader.attach(
            table.vectors(0, np.insert(rows, firsts, ROOT_FORM)[layout.source]),
            np.insert(lemmas, firsts, 3)[layout.source],
            np.insert(np.array([tag] * len(rows)), firsts, 3, axis=0)[layout.source],
            SENTENCES,
            layout,
        )
        is_word = np.arange(len(layout.row)) != 0
        is_word[np.cumsum(layout.lengths)[:-1]] = False
        words = layout.row[is_word]
        found = np.stack([heads[words], relations[words]], 1).tolist()
        assert found == attached_by_stanza(given, options)


def test_network_with_a_transformer_is_left_to_stanza() -> None:
    transformer = SimpleNamespace(args={"bert_model": "roberta"}, model=None)
    assert "transformer" in (obstacle_to_networks(transformer, transformer) or "")


@pytest.fixture(scope="module")
def tagger() -> Any:
    from stanza.models.pos.model import Tagger

    vocabulary = vocabularies()
    return processor(Tagger(SHAPES, vocabulary, share_hid=True), SHAPES, vocabulary)


def test_cleared_table_depends_on_nothing_before_and_not_on_how_large_it_was(tagger: Any) -> None:
    with torch.inference_mode():
        for most_forms, used_forms in ((10_000, ["home", "boats", "Harwich", "?"]), (4, list("abcdefgh"))):
            fresh, used = (FormTable([TaggerNetwork(tagger, CPU)], most_forms=most_forms) for _ in range(2))
            used.look_up(used_forms)
            used.clear()
            for forms in (["Nobody", "saw", "boats"], ["at", "home"]):
                expected, found = fresh.look_up(forms), used.look_up(forms)
                assert expected.tolist() == found.tolist()
                for left, right in zip(fresh.vectors(0, expected), used.vectors(0, found), strict=True):
                    assert torch.equal(left, right)


def test_full_table_of_forms_starts_again(tagger: Any) -> None:
    with torch.inference_mode():
        table = FormTable([TaggerNetwork(tagger, CPU)], most_forms=4)
        expected = [vectors[0] for vectors in table.vectors(0, table.look_up(["boats"]))]
        for forms in (["a", "b", "c"], ["boats", "d"], ["a", "b", "c", "d", "e", "boats", "a"], ["boats"]):
            rows = table.look_up(forms)
            assert rows.tolist() == [rows.tolist()[forms.index(form)] for form in forms]
        for found, vector in zip(table.vectors(0, rows), expected, strict=True):
            torch.testing.assert_close(found[0], vector)
        assert table.vectors(0, rows)[0].shape == (1, SHAPES["word_emb_dim"])
