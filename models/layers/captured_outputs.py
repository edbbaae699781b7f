"""Look at what modules give while a network runs, so that figures need no second path through it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


@contextmanager
def capture_outputs(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, Tensor]]:
    """Keep each module's last output while a block runs.

    Yields:
        Name to output; a module that does not run has no entry.
    """
    outputs: dict[str, Tensor] = {}

    def keep(name: str, module: nn.Module) -> RemovableHandle:
        def note(module: nn.Module, arguments: object, output: Tensor) -> None:
            del module, arguments
            outputs[name] = output

        return module.register_forward_hook(note)

    handles = [keep(name, module) for name, module in modules.items()]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
