"""Optimizers and learning-rate schedules of the papers, one optimizer for each parameter group of a tagger."""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import nn

from models.config import Config, ConfigError


class OptimizerConfig(Config):
    """One optimizer and its schedule."""

    kind: Literal["sgd", "adam", "adamw", "nadam"] = "adam"
    learning_rate: float = Field(default=1e-3, gt=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """SGD only."""
    weight_decay: float = Field(default=0.0, ge=0)
    epsilon: float = Field(default=1e-8, gt=0)
    """Adam's; not read by SGD."""
    schedule: Literal["constant", "inverse", "linear", "cosine_restarts"] = "constant"
    """inverse: learning_rate / (1 + decay * epoch); linear: up over the share `warmup` of all steps, then down to 0;
    cosine_restarts: down half a cosine, epoch by epoch, and up again at once (Loshchilov and Hutter, 2017)."""
    decay: float = Field(default=0.05, ge=0)
    warmup: float = Field(default=0.1, ge=0, lt=1)
    first_cycle: int = Field(default=10, ge=1)
    """Epochs of the first cycle of cosine_restarts."""
    cycle_growth: int = Field(default=2, ge=1)
    """How many times as long as the one before each further cycle is."""


def build_optimizers(
    groups: Mapping[str, list[nn.Parameter]], configs: Mapping[str, OptimizerConfig]
) -> dict[str, torch.optim.Optimizer]:
    """Build an optimizer for each group.

    Raises:
        ConfigError: when the configured names are not those of the tagger's groups.
    """
    if set(groups) != set(configs):
        raise ConfigError(f"fit.optimizers: expected the groups {sorted(groups)}, got {sorted(configs)}")
    return {name: _build(parameters, configs[name]) for name, parameters in groups.items()}


def learning_rate(config: OptimizerConfig, *, epoch: int, step: int, steps: int) -> float:
    """Give the learning rate of a step.

    Args:
        epoch: 0-based.
        step: 0-based, counted from the start of training.
        steps: of the whole training.
    """
    if config.schedule == "inverse":
        return config.learning_rate / (1.0 + config.decay * epoch)
    if config.schedule == "linear":
        warm = config.warmup * steps
        share = (step + 1) / warm if step + 1 <= warm else (steps - step) / max(1.0, steps - warm)
        return config.learning_rate * min(1.0, share)
    if config.schedule == "cosine_restarts":
        cycle = config.first_cycle
        while epoch >= cycle:
            epoch, cycle = epoch - cycle, cycle * config.cycle_growth
        return config.learning_rate * (1.0 + math.cos(math.pi * epoch / cycle)) / 2.0
    return config.learning_rate


def _build(parameters: list[nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    rate, decay, epsilon = config.learning_rate, config.weight_decay, config.epsilon
    if config.kind == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=config.momentum, weight_decay=decay)
    if config.kind == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay, eps=epsilon)
    if config.kind == "adamw":
        return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay, eps=epsilon)
    return torch.optim.NAdam(parameters, lr=rate, weight_decay=decay, eps=epsilon)
