"""How documents are labelled in one call of a tagger; torch is not imported."""

from collections.abc import Callable
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from concord.models.config import Config, LabelNeutral

Precision: TypeAlias = Literal["fp32", "bf16"]
OnBatch: TypeAlias = Callable[[int, int], None]
"""Called with the words that are done, and the words there are."""


class PredictOptions(Config):
    """The options of one call of ``Tagger.predict_documents``."""

    precision: Precision = "fp32"
    """bf16 computes networks in bfloat16, faster on some devices; an encoder in int8 stays so, and on a CPU a tagger of
    two stages computes its encoder alone in bfloat16. Probabilities, entropies and CRFs stay in fp32. A run then
    reports the share of labels that differ from those of fp32."""
    batch_words: Annotated[int, LabelNeutral] = Field(default=4096, ge=1)
    """Most words (padding included) in a batch of sentences on a CPU, unless one sentence is longer; on a GPU, sixteen
    times as many. Lower it where memory is short; there is nothing to gain by raising it."""
    samples: int | None = Field(default=None, ge=1)
    """Monte-Carlo weight samples M; the tagger's own number if null."""
    threshold: float | None = None
    """Uncertainty in nats above which stage two decides; the tagger's own threshold if null."""


DEFAULT_OPTIONS = PredictOptions()
