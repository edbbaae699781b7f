"""Models of other libraries as taggers: their labels, and which components of a spaCy pipeline are run."""

from pathlib import Path

import pytest
import spacy
from spacy.tokens import Doc
from spacy.training import Example

from concord.models.adapters.base import LabelMap
from concord.models.adapters.spacy import SpacyTagger
from concord.models.errors import ModelError


@pytest.mark.parametrize(
    ("names", "scheme", "labels", "numbers"),
    [
        (["I-PER", "O", "B-PER"], "BIO", ("O", "B-PER", "I-PER"), (1, 2, 0)),
        (["O", "B_PER", "I_PER"], "BIO", ("O", "B-PER", "I-PER"), (0, 1, 2)),
        (["O", "B-A", "B-B", "I-B"], "BIO", ("O", "B-A", "I-A", "B-B", "I-B"), (0, 1, None, 2, 3)),
        (["O", "B-A", "I-A", "E-A", "S-A"], "BIOES", ("O", "B-A", "I-A", "E-A", "S-A"), (0, 1, 2, 3, 4)),
        (["U-A", "L-A", "I-A", "B-A", "O"], "BIOES", ("O", "B-A", "I-A", "E-A", "S-A"), (4, 3, 2, 1, 0)),
        (["O", "B-A", "M-A", "E-A", "W-A"], "BIOES", ("O", "B-A", "I-A", "E-A", "S-A"), (0, 1, 2, 3, 4)),
        (["O", "I-A"], "BIO", ("O", "B-A", "I-A"), (0, 1, 1)),
        (["PER", "O"], "BIO", ("O", "B-PER", "I-PER"), (1, 0, 0)),
        (["O", "PER-B", "PER-I", "LOC-B"], "BIO", ("O", "B-LOC", "I-LOC", "B-PER", "I-PER"), (0, 3, None, 1, 2)),
        (["A_I", "A_B", "O"], "BIO", ("O", "B-A", "I-A"), (2, 1, 0)),
        (["O", "A-B", "A-I", "A-L", "A-U"], "BIOES", ("O", "B-A", "I-A", "E-A", "S-A"), (0, 1, 2, 3, 4)),
        (["O", "A-B", "A-M", "A-E", "A-S"], "BIOES", ("O", "B-A", "I-A", "E-A", "S-A"), (0, 1, 2, 3, 4)),
        (["O", "A-I", "C-I"], "BIO", ("O", "B-A", "I-A", "B-C", "I-C"), (0, 1, 1, 2, 2)),
        (["O", "B-B", "I-B"], "BIO", ("O", "B-B", "I-B"), (0, 1, 2)),
        (["O", "PER", "VITAMIN-B"], "BIO", ("O", "B-PER", "I-PER", "B-VITAMIN-B", "I-VITAMIN-B"), (0, 1, 1, 2, 2)),
        (["NOUN-S", "ADJ-S", "ADJ-M"], "TOKENS", ("ADJ-M", "ADJ-S", "NOUN-S"), (2, 1, 0)),
        (["VERB", "NOUN"], "TOKENS", ("NOUN", "VERB"), (1, 0)),
    ],
)
def test_labels_of_every_scheme_are_understood(
    names: list[str], scheme: str, labels: tuple[str, ...], numbers: tuple[int | None, ...]
) -> None:
    found = LabelMap.of(names)
    assert (found.scheme.name, found.labels, found.numbers) == (scheme, labels, numbers)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["LABEL_0", "LABEL_1"], "got LABEL_0; give id2label and label2id of config.json the names"),
        (["O", "B-A", "I-A", "PAD"], "labels of one scheme, got 'PAD'"),
        (["O", "B-A", "L-A", "E-A"], "labels of one scheme, got 'E-A'"),
        (["O", "A-B", "A-I", "C"], "labels of one scheme, such as B-PER or PER-B, got O, A-B, A-I, C"),
        (["O", "A-B", "I-A"], "labels of one scheme, got 'A-B'"),
        (["O", "A-B", "C-B"], "such as B-PER or PER-B, got O, A-B, C-B; rename them in id2label"),
    ],
)
def test_labels_without_a_scheme_are_refused_with_the_remedy(names: list[str], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        LabelMap.of(names)


LISTENER = {"@architectures": "spacy.Tok2VecListener.v1", "width": 96}
MODELS = {
    "tagger": {"@architectures": "spacy.Tagger.v2", "tok2vec": LISTENER},
    "ner": {
        "@architectures": "spacy.TransitionBasedParser.v2",
        "state_type": "ner", "extra_state_tokens": False, "hidden_width": 64, "maxout_pieces": 2, "use_upper": True,
        "tok2vec": LISTENER,
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("sharing", "run"), [(["tagger"], ["ner"]), (["tagger", "ner"], ["tok2vec", "ner"])])
def test_only_what_entities_depend_on_is_run(sharing: list[str], run: list[str], tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec")
    for name, model in MODELS.items():
        nlp.add_pipe(name, config={"model": model} if name in sharing else {})
    words = ["Ada", "left"]
    reference = Doc(nlp.vocab, words=words, tags=["NNP", "VBD"], ents=["B-PER", "O"])
    nlp.initialize(lambda: [Example(Doc(nlp.vocab, words=words), reference)])
    nlp.to_disk(tmp_path / "pipeline")
    assert SpacyTagger.adapt(str(tmp_path / "pipeline"))._pipeline.pipe_names == run
