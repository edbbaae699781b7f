"""Copies in the background, and work that overlaps."""

from collections.abc import Iterator

import pytest
import torch
from concord_testing.fake_device import FakeDevice

from concord.models.devices import Work, fetch, finished, overlap, send

CPU = torch.device("cpu")


def test_tensors_of_all_kinds_are_sent_in_one_copy() -> None:
    values = (
        torch.tensor([[1, -2], [3, 4]]),
        torch.tensor([True, False, True]),
        torch.zeros(0, 5),
        torch.rand(3, 3).t(),
        torch.tensor([7], dtype=torch.uint8),
    )
    with FakeDevice() as device:
        sent = send(torch.device("cuda"), *values)
        assert device.copies == {"to_device": 1}
        for value, found in zip(values, sent, strict=True):
            assert found.device.type == "cuda"
            assert (found.shape, found.dtype) == (value.shape, value.dtype)
            assert torch.equal(found.cpu(), value)


def test_a_cpu_is_sent_the_tensors_themselves() -> None:
    values = torch.rand(2), torch.tensor([3])
    assert all(found is value for found, value in zip(send(CPU, *values), values, strict=True))
    assert fetch(values[0])() is values[0]


def test_a_fetched_tensor_is_on_the_cpu_and_is_not_waited_for_at_once() -> None:
    with FakeDevice() as device:
        (sent,) = send(torch.device("cuda"), torch.tensor([[1.5, 2.5]]))
        copied = fetch(sent)
        assert not device.waits
        assert copied().device == CPU
        assert copied().tolist() == [[1.5, 2.5]]


def step_by_step(name: str, done: list[str], *, stops: int) -> Work[None]:
    for number in range(stops):
        done.append(f"{name}{number}")
        yield
    done.append(f"{name}.")


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cpu", "a0 a1 a. b0 b. c0 c1 c."), ("cuda", "a0 b0 a1 c0 a. b. c1 c.")],
)
def test_work_on_a_gpu_begins_before_other_work_goes_on(device: str, expected: str) -> None:
    done: list[str] = []

    def works() -> Iterator[Work[None]]:
        for name, stops in (("a", 2), ("b", 1), ("c", 2)):
            yield step_by_step(name, done, stops=stops)

    overlap(works(), torch.device(device))
    assert done == expected.split()


def test_finished_work_returns_its_result_and_raises_its_error() -> None:
    def double(value: int) -> Work[int]:
        yield
        if value < 0:
            raise ValueError("too small")
        return 2 * value

    assert finished(double(3)) == 6
    with pytest.raises(ValueError, match="too small"):
        finished(double(-1))
