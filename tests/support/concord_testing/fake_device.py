"""A device that computes on the CPU and counts what a GPU would be told to do.

Within ``FakeDevice()`` tensors can be moved to ``cuda``. As on a GPU they do not mix with those of the CPU, and each
operation but a view is a launch; a GPU's LSTM and attention are one each. What makes the host wait is counted by name:
a copy back that is not asynchronous, a number read from a tensor, a mask as an index.
"""

from collections import Counter
from contextlib import ExitStack
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

CUDA = torch.device("cuda", 0)
_WHOLE = (torch.lstm, torch.nn.functional.scaled_dot_product_attention)
_WAITING = {"_local_scalar_dense", "nonzero", "equal", "_unique2", "unique_dim", "masked_select"}
_READS_LENGTHS = {"_pack_padded_sequence", "_pad_packed_sequence"}
_FREE = {"detach", "_unsafe_view", "lift_fresh", "alias", "empty", "empty_strided", "empty_like", "new_empty"}


class OnDevice(Tensor):
    """A tensor of the fake device, whose values are in ``plain``, on the CPU."""

    plain: Tensor

    @staticmethod
    def of(values: Tensor) -> "OnDevice":
        """Wrap values."""
        shape = torch.empty_strided(values.shape, values.stride(), dtype=values.dtype, device="meta")
        wrapped = Tensor._make_subclass(OnDevice, shape)
        wrapped.plain = values
        return wrapped

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return CUDA

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def __deepcopy__(self, memo: Any) -> "OnDevice":
        copied: Any = self.clone()
        copied._is_param = getattr(self, "_is_param", False)
        return cast(OnDevice, copied)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise RuntimeError(f"{function}: outside of FakeDevice()")


class FakeDevice:
    """Counts while it is entered.

    Attributes:
        waits: how often each operation made the host wait.
        launches: how often each operation was launched.
        copies: to and from the device, by direction: ``to_device``, ``to_host``.
    """

    def __init__(self) -> None:
        self.launches: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    def __enter__(self) -> "FakeDevice":
        with ExitStack() as stack:
            # Torch would look for a GPU before it asks these modes.
            stack.enter_context(mock.patch("torch.cuda._lazy_init"))
            stack.enter_context(mock.patch("torch.cuda.Event", _Event))
            stack.enter_context(mock.patch("torch.backends.cudnn.is_acceptable", return_value=False))
            stack.enter_context(_Functions(self))
            stack.enter_context(_Operations(self))
            self._entered = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.close()

    def clear(self) -> None:
        """Count from zero."""
        for counted in (self.launches, self.copies, self.waits):
            counted.clear()


class _Event:
    """What it waits for is done at once."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


class _Operations(TorchDispatchMode):
    def __init__(self, device: FakeDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        flat, spec = tree_flatten((args, kwargs))
        fakes = [leaf for leaf in flat if isinstance(leaf, OnDevice)]
        # Code in C++ that asks a fake tensor for its device is told that of the tensor it is made of.
        target = {"meta": "cuda", "cuda": "cuda", "cpu": "cpu"}.get(str(kwargs.get("device")).split(":")[0])
        name = function.name().split("::")[1].split(".")[0]
        if not fakes and not any(isinstance(leaf, torch.device) and leaf.type in ("cuda", "meta") for leaf in flat):
            return function(*args, **kwargs)
        with self:
            parts = function.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        if name == "_to_copy" and target is not None and bool(fakes) != (target == "cuda"):
            return self._copy(args[0], **kwargs)
        if name == "copy_" and isinstance(args[0], OnDevice) != isinstance(args[1], OnDevice):
            return self._copy_into(*args)
        plain = [leaf for leaf in flat if isinstance(leaf, Tensor) and not isinstance(leaf, OnDevice)]
        if name.startswith(("index", "_index")):
            self._device.copies["to_device"] += sum(tensor.dim() > 0 for tensor in plain)
        elif any(tensor.dim() for tensor in plain) and name not in _READS_LENGTHS:
            raise RuntimeError(f"{name}: expected all tensors on one device, got cuda and cpu")
        if name in _WAITING or (name.startswith(("index", "_index")) and _has_mask(args)):
            self._device.waits[name] += 1
        if not function.is_view and name not in _FREE:
            self._device.launches[name] += 1
        # On CPUs without AVX-512 torch multiplies integers in a plain loop; in float64 the sums are exact as well.
        function = _multiply_integers if name == "_int_mm" else function
        results = _run(function, flat, spec, fakes)
        # The sizes of steps stay with the host, as a GPU's LSTM wants them.
        return (results[0], results[1].plain) if name == "_pack_padded_sequence" else results

    def _copy(self, source: Tensor, *, dtype: Any = None, non_blocking: bool = False, **_: Any) -> Tensor:
        if not isinstance(source, OnDevice):
            self._device.copies["to_device"] += 1
            return OnDevice.of(source.to(dtype or source.dtype, copy=True))
        self._count_copy_to_host(non_blocking)
        return source.plain.to(dtype or source.dtype, copy=True)

    def _copy_into(self, destination: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        if isinstance(destination, OnDevice):
            self._device.copies["to_device"] += 1
            destination.plain.copy_(source)
        elif isinstance(source, OnDevice):
            self._count_copy_to_host(non_blocking)
            destination.copy_(source.plain)
        return destination

    def _count_copy_to_host(self, non_blocking: bool) -> None:
        self._device.copies["to_host"] += 1
        if not non_blocking:
            self._device.waits["copy to the host"] += 1


class _Functions(TorchFunctionMode):
    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        flat, spec = tree_flatten((args, kwargs or {}))
        # Torch asks a GPU that is not there which one is meant by a name without a number.
        flat = [CUDA if isinstance(leaf, str | torch.device) and str(leaf) == "cuda" else leaf for leaf in flat]
        fakes = [leaf for leaf in flat if isinstance(leaf, OnDevice)]
        if function not in _WHOLE or not fakes:
            args, kwargs = tree_unflatten(flat, spec)
            if function is Tensor.to and isinstance(args[1] if len(args) > 1 else None, OnDevice):
                return function(args[0], CUDA, args[1].dtype)
            if function is Tensor.tolist and fakes:
                return function(fakes[0].cpu())
            if function is torch.tensor and kwargs.get("device") == CUDA:
                return function(*args, **kwargs | {"device": "cpu"}).to(CUDA)
            return function(*args, **kwargs)
        self._device.launches[function.__name__] += 1
        with torch._C._DisableTorchDispatch():
            return _run(function, flat, spec, fakes)


def _run(function: Any, flat: list[Any], spec: Any, fakes: list[OnDevice]) -> Any:
    """Call a function on the values of the fake tensors, and wrap what it returns."""
    flat = [leaf.plain if isinstance(leaf, OnDevice) else leaf for leaf in flat]
    args, kwargs = tree_unflatten(flat, spec)
    if "device" in kwargs:
        kwargs["device"] = torch.device("cpu")
    known = {id(fake.plain): fake for fake in fakes}  # what an operation changes in place, it returns

    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return known[id(value)] if id(value) in known else OnDevice.of(value)

    # A view of a tensor that has gradient is one as well, even where inference is on.
    is_plain_view = getattr(function, "is_view", False) and not all(fake.is_inference() for fake in fakes)
    with torch.inference_mode(torch.is_inference_mode_enabled() and not is_plain_view):
        return tree_map(wrap, function(*args, **kwargs))


def _multiply_integers(left: Tensor, right: Tensor) -> Tensor:
    return (left.double() @ right.double()).int()


def _has_mask(args: Any) -> bool:
    indices = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else []
    return any(isinstance(index, OnDevice) and index.dtype == torch.bool for index in indices)
