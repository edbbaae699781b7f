"""What pages keep of what they computed."""

from collections import OrderedDict
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(OrderedDict[Key, Value]):
    """A dictionary of the last entries that were added."""

    def __init__(self, size: int) -> None:
        """Start without an entry, for at most so many."""
        super().__init__()
        self._size = size

    def __setitem__(self, key: Key, value: Value) -> None:
        """Add an entry; the oldest makes room for it."""
        super().__setitem__(key, value)
        while len(self) > self._size:
            self.popitem(last=False)
