"""Optimizers and learning-rate schedules, one of each per parameter group of a tagger."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from concord.models.config import Config
from concord.models.errors import ConfigError


class OptimizerConfig(Config):
    """An optimizer and its learning-rate schedule."""

    kind: Literal["sgd", "adam", "adamw", "nadam"] = "adam"
    learning_rate: float = Field(default=1e-3, gt=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """SGD only."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW does not apply it to vectors, which are biases and weights of normalizations."""
    epsilon: float = Field(default=1e-8, gt=0)
    """Not used by SGD."""
    schedule: Literal["constant", "inverse", "linear", "cosine_restarts"] = "constant"
    """inverse: learning_rate / (1 + decay * epoch); linear: up over the share `warmup` of all steps, then down to 0;
    cosine_restarts: down half a cosine in each cycle of epochs, then restarted (Loshchilov and Hutter, 2017)."""
    decay: float = Field(default=0.05, ge=0)
    warmup: float = Field(default=0.1, ge=0, lt=1)
    first_cycle: int = Field(default=10, ge=1)
    """Epochs of the first cycle of cosine_restarts."""
    cycle_growth: int = Field(default=2, ge=1)
    """Length of each cycle relative to the previous one."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """Factor from the learning rate of each layer of a tuned encoder to that of the layer below; the top layer has
    `learning_rate`, the embeddings have the lowest (Howard and Ruder, ACL 2018, section 3.2)."""


def build_optimizers(
    groups: Mapping[str, list[nn.Parameter]],
    configs: Mapping[str, OptimizerConfig],
    *,
    layers_above: Mapping[nn.Parameter, int] | None = None,
) -> dict[str, torch.optim.Optimizer]:
    """Build an optimizer for each parameter group; raise ConfigError if configurations have names of other groups.

    ``layers_above`` has the number of layers above that of each parameter; 0 for parameters that are missing.
    """
    if set(groups) != set(configs):
        raise ConfigError(f"fit.optimizers: expected the groups {sorted(groups)}, got {sorted(configs)}")
    return {name: _build(parameters, configs[name], layers_above or {}) for name, parameters in groups.items()}


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter to this rate times the factor of its layer."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["layer_factor"]


def learning_rate(config: OptimizerConfig, *, epoch: int, step: int, steps: int) -> float:
    """Return the learning rate of a step of ``steps`` in the whole training; epoch and step are 0-based."""
    if config.schedule == "inverse":
        return config.learning_rate / (1.0 + config.decay * epoch)
    if config.schedule == "linear":
        warm = config.warmup * steps
        share = (step + 1) / warm if step + 1 <= warm else (steps - step) / max(1.0, steps - warm)
        # Batches of whole documents differ by epoch, and may be more than was foreseen.
        return config.learning_rate * min(1.0, max(0.0, share))
    if config.schedule == "cosine_restarts":
        cycle = config.first_cycle
        while epoch >= cycle:
            epoch, cycle = epoch - cycle, cycle * config.cycle_growth
        return config.learning_rate * (1.0 + math.cos(math.pi * epoch / cycle)) / 2.0
    return config.learning_rate


def _build(
    parameters: list[nn.Parameter], config: OptimizerConfig, layers_above: Mapping[nn.Parameter, int]
) -> torch.optim.Optimizer:
    groups = _torch_groups(parameters, config, layers_above)
    if config.kind == "sgd":
        return torch.optim.SGD(groups, lr=config.learning_rate, momentum=config.momentum)
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "nadam": torch.optim.NAdam}
    optimizer: torch.optim.Optimizer = kinds[config.kind](groups, lr=config.learning_rate, eps=config.epsilon)
    return optimizer


def _torch_groups(
    parameters: list[nn.Parameter], config: OptimizerConfig, layers_above: Mapping[nn.Parameter, int]
) -> list[dict[str, Any]]:
    """Group parameters of equal rate and decay, in their order."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in parameters:
        factor = config.layer_decay ** layers_above.get(parameter, 0)
        decays = config.kind != "adamw" or parameter.dim() > 1
        groups.setdefault((factor, config.weight_decay if decays else 0.0), []).append(parameter)
    return [
        {"params": members, "layer_factor": factor, "weight_decay": decay}
        for (factor, decay), members in groups.items()
    ]
