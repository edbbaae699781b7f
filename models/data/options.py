"""How documents are labelled in one call of a tagger; torch is not imported."""

from collections.abc import Callable
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from concord.models.config import Config, LabelNeutral

Precision: TypeAlias = Literal["fp32", "bf16"]
_BATCH_WORDS = {"cpu": 4096, "cuda": 65536}
OnBatch: TypeAlias = Callable[[int, int], None]
"""Called with the words that are done, and the words there are."""


class PredictOptions(Config):
    """The options of one call of ``Tagger.predict_documents``."""

    precision: Precision = "fp32"
    """bf16 computes networks in bfloat16, faster on some devices; on a CPU, a tagger of two stages computes its encoder
    alone so, and products of an encoder in int8 stay in int8. Probabilities, entropies and CRFs stay in fp32. A run
    then reports the share of labels that differ from those of fp32."""
    batch_words: Annotated[int | None, LabelNeutral] = Field(default=None, ge=1)
    """Most words (padding included) in a batch of sentences, unless one sentence is longer; a limit to memory. If null,
    4,096 on a CPU, 65,536 on a GPU."""
    samples: int | None = Field(default=None, ge=1)
    """Monte-Carlo weight samples M; the tagger's own number if null."""
    threshold: float | None = None
    """Uncertainty in nats above which stage two decides; the tagger's own threshold if null."""

    def words_in_batch(self, device: str) -> int:
        """Return the most words in a batch on a kind of device."""
        return self.batch_words or _BATCH_WORDS[device]


DEFAULT_OPTIONS = PredictOptions()
