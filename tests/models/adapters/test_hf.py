"""Token-classification models of transformers; what every tagger guarantees is in taggers/test_every_tagger.py."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from concord_testing.encoders import write_encoder
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from concord.models.adapters.hf import HfTagger
from concord.models.bundles.checkpoint import load_tagger, save_tagger
from concord.models.bundles.manifest import CONFIG_NAME, tagger_digest
from concord.models.data.sentence import Sentence
from concord.models.errors import ModelError

WORDS = ("Ada", "met", "Bob", "in", "Paris")
pytestmark = pytest.mark.slow


def write(folder: Path, *labels: str) -> Path:
    folder.mkdir()
    return write_encoder(folder, sorted(word.lower() for word in WORDS), labels=labels)


def read_logits(folder: Path, words: Sequence[str]) -> torch.Tensor:
    """Return the model's own scores of words that are one subword each, as transformers computes them."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        scores: torch.Tensor = model(**tokenizer(" ".join(words), return_tensors="pt")).logits[0, 1:-1]
    return scores.log_softmax(dim=-1)


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def is_legal(labels: Sequence[str]) -> bool:
    """Return whether no label I- of a type stands behind a label that is neither B- nor I- of it."""
    return all(
        not right.startswith("I-") or left[2:] == right[2:] for left, right in itertools.pairwise(("O", *labels))
    )


def test_labels_are_the_best_legal_sequence_and_probabilities_those_among_such(tmp_path: Path) -> None:
    names = ("I-A", "O", "B-B", "B-A", "I-B")
    folder = write(tmp_path / "model", *names)
    tagger = HfTagger.adapt(str(folder))
    ((prediction,),) = tagger.predict_documents([[Sentence(words=WORDS)]])
    logits = read_logits(folder, WORDS)
    scores = {
        labels: float(sum(logits[place, names.index(label)] for place, label in enumerate(labels)))
        for labels in itertools.product(names, repeat=len(WORDS))
        if is_legal(labels)
    }
    total = torch.tensor(list(scores.values())).logsumexp(dim=0)
    probabilities = {labels: float((torch.tensor(score) - total).exp()) for labels, score in scores.items()}
    assert prediction.labels == max(scores, key=scores.__getitem__)
    for place, label in enumerate(prediction.labels):
        expected = sum(share for labels, share in probabilities.items() if labels[place] == label)
        assert prediction.probabilities[place] == pytest.approx(expected, abs=1e-4)
    assert prediction.spans
    for span, confidence in zip(prediction.spans, prediction.confidences, strict=True):
        own = prediction.labels[span.start : span.end]
        share = sum(
            share
            for labels, share in probabilities.items()
            if labels[span.start : span.end] == own and labels[span.end : span.end + 1] != (f"I-{span.label}",)
        )
        assert confidence == pytest.approx(share, abs=1e-4)


def test_words_of_one_type_are_one_entity_where_a_model_has_no_beginnings(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "PER", "O")
    tagger = HfTagger.adapt(str(folder))
    words = WORDS * 8
    ((prediction,),) = tagger.predict_documents([[Sentence(words=words)]])
    assert not any(left.end == right.start for left, right in itertools.pairwise(prediction.spans))
    ((short,),) = tagger.predict_documents([[Sentence(words=WORDS)]])
    shares = read_logits(folder, WORDS).exp()
    assert [label != "O" for label in short.labels] == (shares[:, 0] > shares[:, 1]).tolist()
    table = tagger.tabulate([[Sentence(words=WORDS)]], keep="distributions")
    assert table.distributions is not None
    assert torch.allclose(table.distributions[:, 0], shares[:, 1], atol=1e-5)


def test_every_word_of_a_long_sentence_is_read_with_words_around_it(tmp_path: Path) -> None:
    # Labels of words, since a label of the best sequence depends on all of them.
    tagger = HfTagger.adapt(str(write(tmp_path / "model", "ADJ", "NOUN", "VERB")))
    words = WORDS * 120  # 600, where the model takes 14 subwords and a window of a tagger has 256 words
    table = tagger.tabulate([[Sentence(words=words)]], keep="distributions")
    assert table.distributions is not None
    assert torch.allclose(table.distributions.sum(dim=1), torch.ones(600), atol=1e-5)
    # Windows of 14 words share 3, a quarter of them: one begins at word 99.
    inside = tagger.tabulate([[Sentence(words=words[99:113])]], keep="distributions")
    assert inside.distributions is not None
    assert torch.allclose(table.distributions[106], inside.distributions[7], atol=1e-5)


def test_byte_level_words_are_split_as_within_a_text_and_positions_are_not_exceeded(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "\u0120", "a", "b", "\u0120a"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", vocab=vocabulary, merges=[("\u0120", "a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    names = dict(zip(("cls_token", "pad_token", "sep_token", "unk_token"), pieces, strict=False))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer", **names}))
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.RobertaConfig(vocab_size=8, max_position_embeddings=20, **sizes)
    config.id2label = {0: "O", 1: "PER"}
    transformers.RobertaForTokenClassification(config).save_pretrained(tmp_path)
    tagger = HfTagger.adapt(str(tmp_path))
    assert tagger._reader.rows(tagger._reader.windows([["a", "ab"]])) == [[0, 7, 7, 6, 2]]
    ((prediction,),) = tagger.predict_documents([[Sentence(words=("ab",) * 50)]])
    assert len(prediction.labels) == 50


def test_a_bundle_needs_no_source_and_its_digest_is_of_weights_labels_and_tokenizer(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "O", "B-A", "I-A")
    (folder / "README.md").write_text("not read")
    save_tagger(HfTagger.adapt(str(folder)), tmp_path / "bundle")
    files = {path.name for path in (tmp_path / "bundle").rglob("*") if path.is_file()}
    assert {CONFIG_NAME, "weights.safetensors", "config.json", "tokenizer.json"} <= files
    assert not files & {"model.safetensors", "README.md"}
    assert str(tmp_path) not in (tmp_path / "bundle" / CONFIG_NAME).read_text()
    digests = {tagger_digest(tmp_path / "bundle")}
    tokenizer = folder / "tokenizer.json"
    for number, change in enumerate(("labels", "tokenizer", "nothing")):
        if change == "labels":
            edit(folder / "config.json", id2label={"0": "O", "1": "B-C", "2": "I-C"})
        if change == "tokenizer":
            tokenizer.write_text(tokenizer.read_text().replace('"paris"', '"rome"'))
        save_tagger(HfTagger.adapt(str(folder)), tmp_path / str(number))
        digests.add(tagger_digest(tmp_path / str(number)))
    assert len(digests) == 3
    loaded = load_tagger(tmp_path / "1")
    assert loaded.entity_types == ("C",)
    names = {name.removeprefix("network.") for name in load_file(tmp_path / "1" / "weights.safetensors")}
    assert names == set(load_file(folder / "model.safetensors"))


def write_bpe(folder: Path) -> Path:
    """Write a model whose tokenizer reads bpe.codes and has no tokenizer.json; return the folder."""
    transformers = pytest.importorskip("transformers")
    letters = "abdeimnoprstAB"
    folder.mkdir()
    pieces = [*letters, *(f"{letter}@@" for letter in letters)]
    (folder / "vocab.txt").write_text("".join(f"{piece} 1\n" for piece in pieces))
    (folder / "bpe.codes").write_text("A d 5\n")
    tokenizer = transformers.BertweetTokenizer(str(folder / "vocab.txt"), str(folder / "bpe.codes"))
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    torch.manual_seed(5)
    config = transformers.RobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=20, pad_token_id=1, **sizes)
    config.id2label = {0: "O", 1: "B-PER", 2: "I-PER"}
    transformers.RobertaForTokenClassification(config).save_pretrained(folder)
    return folder


def test_a_bundle_has_every_file_that_its_tokenizer_reads(tmp_path: Path) -> None:
    folder = write_bpe(tmp_path / "model")
    tagger = HfTagger.adapt(str(folder))
    digest = HfTagger.model_digest(folder)
    save_tagger(tagger, tmp_path / "bundle")
    document = [Sentence(words=WORDS)]
    before = tagger.predict_documents([document])
    (folder / "bpe.codes").write_text("A d 5\nAd a 4\n")
    assert HfTagger.model_digest(folder) != digest
    (folder / "bpe.codes").unlink()
    assert load_tagger(tmp_path / "bundle").predict_documents([document]) == before
    with pytest.raises(
        ModelError, match=r"expected vocab\.txt, bpe\.codes, the files of a BertweetTokenizer, found no bpe"
    ):
        HfTagger.adapt(str(folder))
    with pytest.raises(ModelError, match=r"found no bpe\.codes"):
        HfTagger.model_digest(folder)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"0": "O", "1": "B-A", "3": "I-A"}, "for each number from 0 to 2, got 'none' for 2"),
        ({"1": "O", "2": "B-A", "3": "I-A"}, "got 'none' for 0"),
        ({"0": "O", "1": None, "2": "I-A"}, "got None for 1"),
        ({"0": "O", "1": 7, "2": "I-A"}, "got 7 for 1"),
    ],
)
def test_labels_without_a_name_are_refused(tmp_path: Path, names: dict[str, Any], message: str) -> None:
    folder = write(tmp_path / "model", "O", "B-A", "I-A")
    edit(folder / "config.json", id2label=names)
    with pytest.raises(ModelError, match=f"id2label of config.json: expected a name .*{message}"):
        HfTagger.adapt(str(folder))


def test_types_before_parts_of_entities_are_types(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "O", "PER-B", "PER-I", "LOC-B", "LOC-I")
    assert HfTagger.adapt(str(folder)).entity_types == ("LOC", "PER")


def test_models_that_are_not_for_token_classification_or_not_safe_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"expected the folder of a model of transformers, with config\.json"):
        HfTagger.adapt(str(tmp_path))
    (tmp_path / "encoder").mkdir()
    with pytest.raises(ModelError, match=r"got none of its weights classifier\.bias"):
        HfTagger.adapt(str(write_encoder(tmp_path / "encoder", ["a"])))
    unnamed = write(tmp_path / "unnamed", "LABEL_0", "LABEL_1")
    with pytest.raises(ModelError, match="expected names such as B-PER, got LABEL_0"):
        HfTagger.adapt(str(unnamed))
    pickled = write(tmp_path / "pickled", "O", "B-A")
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="expected a token-classification model with safetensors"):
        HfTagger.adapt(str(pickled))
    foreign = write(tmp_path / "foreign", "O", "B-A")
    edit(foreign / "config.json", model_type="foreign", auto_map={"AutoConfig": "code.Config"})
    (foreign / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: pass\n")
    with pytest.raises(ModelError, match="expected a token-classification model"):
        HfTagger.adapt(str(foreign))
    assert not (tmp_path / "ran").exists()
