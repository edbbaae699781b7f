"""Capture the outputs of inner modules while a network runs, for figures of its attention."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn


@contextmanager
def capture_outputs(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, Tensor]]:
    """Yield a mapping from name to last output of each module; a module that does not run has no entry."""
    outputs: dict[str, Tensor] = {}

    def store(name: str, module: nn.Module, arguments: object, output: Tensor) -> None:
        del module, arguments
        outputs[name] = output

    handles = [module.register_forward_hook(partial(store, name)) for name, module in modules.items()]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
