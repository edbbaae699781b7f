"""What pages show that takes long to compute: a thread computes it, and the page is loaded again until it is there."""

import logging
from collections.abc import Callable
from threading import Thread
from typing import Generic, TypeVar

from concord.models.errors import ConcordError

ValueT = TypeVar("ValueT")

logger = logging.getLogger(__name__)


class Background(Generic[ValueT]):
    """A value that a thread computes.

    Attributes:
        value: None until it is computed, or if it cannot be.
        fault: why it cannot be computed; empty until then.
    """

    def __init__(self, compute: Callable[[], ValueT], *, failure: str) -> None:
        """Start the thread; ``failure`` begins the message about an unexpected error, as in ``No queue``."""
        self.value: ValueT | None = None
        self.fault = ""
        Thread(target=self._run, args=[compute, failure], name="background", daemon=True).start()

    def _run(self, compute: Callable[[], ValueT], failure: str) -> None:
        try:
            self.value = compute()
        except ConcordError as error:
            self.fault = str(error)
        except Exception as error:
            # Without a fault the page would be loaded again for ever.
            logger.exception(failure)
            self.fault = f"{failure}: {type(error).__name__}: {error}; the terminal of 'concord view' shows where"
