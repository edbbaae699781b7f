"""Form vectors as pretrained vectors of Stanza's tagger and parser."""

from collections.abc import Sequence

import torch
from stanza.models.common.pretrain import Pretrain, PretrainedWordVocab
from stanza.models.common.vocab import VOCAB_PREFIX

from concord.models.words.encoder_config import BUNDLED_NAME, EncoderConfig, FormVectorConfig
from concord.models.words.form_vectors import FormVectors

_ENCODER = EncoderConfig(source=BUNDLED_NAME)
_FORBIDDEN = frozenset(VOCAB_PREFIX) | {""}


def make_pretrain(words: Sequence[str], *, dimension: int, forms: int) -> Pretrain:
    """Return vectors of the most frequent forms of a text, with the precision of 16 bits; zeros for other words."""
    vectors = FormVectors(FormVectorConfig(encoder=_ENCODER, dimension=dimension, table_forms=forms))
    # Stanza looks them up without capitals.
    vectors.fit(word for word in map(str.lower, words) if word not in _FORBIDDEN and " " not in word)
    known = bytes(vectors.spellings.tolist()).decode().split("\n")
    pretrain = Pretrain()
    pretrain._vocab = PretrainedWordVocab(known)
    table = vectors.table.half().float()
    pretrain._emb = torch.cat([torch.zeros(len(VOCAB_PREFIX), dimension), table])
    return pretrain
