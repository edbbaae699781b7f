"""Learning-rate schedules, by hand and compared with PyTorch."""

import pytest
import torch

from concord.models.training.fit import OptimizerConfig, learning_rate


@pytest.mark.parametrize(
    ("schedule", "epoch", "step", "expected"),
    [
        ("constant", 7, 70, 0.1),
        ("inverse", 0, 0, 0.1),
        ("inverse", 4, 40, 0.1 / 1.2),
        ("linear", 0, 0, 0.01),
        ("linear", 0, 9, 0.1),
        ("linear", 5, 55, 0.05),
        ("linear", 9, 99, 0.1 / 90),
        ("linear", 9, 103, 0.0),
    ],
)
def test_learning_rate_follows_its_schedule(schedule: str, epoch: int, step: int, expected: float) -> None:
    config = OptimizerConfig.from_mapping({"learning_rate": 0.1, "schedule": schedule, "decay": 0.05, "warmup": 0.1})
    assert learning_rate(config, epoch=epoch, step=step, steps=100) == pytest.approx(expected)


def test_cosine_restarts_equal_those_of_torch() -> None:
    config = OptimizerConfig(learning_rate=5e-3, schedule="cosine_restarts", first_cycle=10, cycle_growth=2)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=5e-3)
    library = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=10, T_mult=2)
    found, expected = [], []
    for epoch in range(151):
        found.append(learning_rate(config, epoch=epoch, step=16 * epoch, steps=16 * 151))
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        library.step()
    assert found == pytest.approx(expected, abs=1e-12)
    assert [epoch for epoch, rate in enumerate(found) if rate == 5e-3] == [0, 10, 30, 70, 150]
