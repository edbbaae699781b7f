"""What turns a tagger's probabilities into frequencies, once it is trained.

A calibration changes no label, no margin and no uncertainty: only the probability of a word's label and the confidence
of an entity. ``concord.models.training.fit_calibration`` fits it on data that the tagger has not seen.
"""

from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from concord.models.config import Config

# A span's probability may underflow; its logit has to stay a number.
_LEAST = 1e-9


class Temperature(Config):
    """A word's label distribution to the power of ``1 / temperature``, made to sum to 1 (Guo et al., 2017)."""

    method: Literal["temperature"] = "temperature"
    temperature: float = Field(gt=0)
    """Above 1 it makes a tagger less sure."""


class Platt(Config):
    """``sigmoid(slope * logit(p) + intercept)`` (Platt, 1999)."""

    method: Literal["platt"] = "platt"
    slope: float = Field(gt=0)
    intercept: float

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Map probabilities of any shape."""
        return np.asarray(1 / (1 + np.exp(-self.slope * logit(values) - self.intercept)))


class Isotonic(Config):
    """A rising line through points."""

    method: Literal["isotonic"] = "isotonic"
    inputs: list[float] = Field(min_length=1)
    """Rising, 0..1."""
    outputs: list[float]
    """One an input, never falling, 0..1. Between points the line is straight, outside them level."""

    @model_validator(mode="after")
    def _rises(self) -> Self:
        rises = all(left < right for left, right in pairwise(self.inputs))
        never_falls = all(left <= right for left, right in pairwise([0.0, *self.outputs, 1.0]))
        if len(self.inputs) != len(self.outputs) or not (rises and never_falls):
            raise ValueError("expected as many inputs, rising, as outputs, never falling within 0..1")
        return self

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Map probabilities of any shape."""
        return np.asarray(np.interp(values, self.inputs, self.outputs))


TokenCalibration = Annotated[Temperature | Isotonic, Field(discriminator="method")]
EntityCalibration = Annotated[Platt | Isotonic, Field(discriminator="method")]


class Calibration(Config):
    """How a tagger's probabilities are to be read."""

    format_version: Literal[1] = 1
    tokens: TokenCalibration
    entities: EntityCalibration | None = None
    """None leaves the spans' own probabilities; so for a tagger of token labels, which has none."""
    fitted: dict[str, Any] = Field(default_factory=dict)
    """What it was fitted on, and how well it does there; for people, not for the tagger."""

    @property
    def temperature(self) -> float:
        """What the words' label distributions are sharpened by; 1 leaves them as they are."""
        return self.tokens.temperature if isinstance(self.tokens, Temperature) else 1.0

    @property
    def summary(self) -> str:
        """Name the methods, for the metadata of tables."""
        entities = "none" if self.entities is None else self.entities.method
        return f"tokens: {self.tokens.method}, entities: {entities}"

    def map_tokens(self, probabilities: Tensor) -> Tensor:
        """Map the probabilities of the words' labels, after the temperature; shape ``(N,)``, float32."""
        return _mapped(probabilities, self.tokens) if isinstance(self.tokens, Isotonic) else probabilities

    def map_entities(self, confidences: list[float]) -> list[float]:
        """Map the probabilities of spans."""
        if self.entities is None or not confidences:
            return confidences
        found: list[float] = self.entities.apply(np.asarray(confidences)).tolist()
        return found


def chosen_probability(probabilities: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Give the probability of chosen labels under a temperature.

    Args:
        probabilities: shape ``(..., L)``, float; zeros where padded.
        labels: shape ``(...)``, int64.

    Returns:
        Shape ``(...)``.
    """
    chosen = probabilities.gather(-1, labels[..., None])[..., 0]
    if temperature == 1.0:
        return chosen
    # By the largest, whose power stays 1: small ones may vanish, all of them must not.
    largest = probabilities.amax(dim=-1).clamp(min=_LEAST)
    powers = (probabilities / largest[..., None]).pow(1 / temperature).sum(dim=-1)
    return (chosen / largest).pow(1 / temperature) / powers.clamp(min=1.0)


def logit(values: np.ndarray) -> np.ndarray:
    """Give the logits of probabilities, finite ones at 0 and 1 too."""
    inside = np.clip(values, _LEAST, 1 - _LEAST)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def _mapped(values: Tensor, line: Isotonic) -> Tensor:
    return torch.from_numpy(line.apply(values.double().numpy())).to(values.dtype)
