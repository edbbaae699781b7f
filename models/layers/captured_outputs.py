"""Capture the outputs of inner modules while a network runs, for figures of its attention."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


@contextmanager
def capture_outputs(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, Tensor]]:
    """Capture the last output of each module while a block runs.

    Yields:
        Name -> output; a module that does not run has no entry.
    """
    outputs: dict[str, Tensor] = {}

    def capture(name: str, module: nn.Module) -> RemovableHandle:
        def store(module: nn.Module, arguments: object, output: Tensor) -> None:
            del module, arguments
            outputs[name] = output

        return module.register_forward_hook(store)

    handles = [capture(name, module) for name, module in modules.items()]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
