"""Where the trainings may compute in bfloat16."""

from functools import cache

import torch

from concord.models.errors import ConfigError
from concord.models.training.fit import check_bf16


@cache
def trains_in_bf16(device: str) -> bool:
    """Return whether a device of this type can train an LSTM in bfloat16; not every processor can."""
    try:
        check_bf16(torch.device(device))
    except ConfigError:
        return False
    return True


def autocast(device: str) -> torch.autocast:
    """Return the context in which the trainings compute: in bfloat16 where the device can train in it."""
    return torch.autocast(device, dtype=torch.bfloat16, enabled=trains_in_bf16(device))
