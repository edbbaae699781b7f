"""A spaCy pipeline as a tagger: which of its components are run."""

from pathlib import Path

import pytest
import spacy
from spacy.tokens import Doc
from spacy.training import Example

from concord.models.adapters.spacy import SpacyTagger

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
