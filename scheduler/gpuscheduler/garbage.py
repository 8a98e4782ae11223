"""Keeps Python's garbage collections short, as no call is answered meanwhile.

A full collection looks at all objects. With the pods of a large cluster, it takes 50 ms and more.
"""

import gc
import time
from typing import Any

_NEW, _YOUNG, _OLD = 700, 10, 3
"""Python's own thresholds but for the last one, which is 10: a full collection after fewer new objects takes less."""
_FULL = 2
THOROUGH_S = 3600.0
"""How often a collection looks at all objects after all: cycles that it frees may be no more than an hour's."""


def keep_collections_short() -> None:
    """Have no collection look at the objects that are there now, nor again at those that a full one has seen.

    They are freed as always when nothing refers to them any more. Only cycles among them are not found before the next
    thorough collection. Neither pods nor nodes are part of one.
    """
    gc.collect()
    gc.freeze()
    # The next full one would wait until a quarter as many objects came as the last one has seen. This one sees few.
    gc.collect()
    gc.set_threshold(_NEW, _YOUNG, _OLD)
    if not any(isinstance(callback, _Freezing) for callback in gc.callbacks):
        gc.callbacks.append(_Freezing())


class _Freezing:
    """Takes what a full collection has seen out of the next ones, until a thorough one is due."""

    def __init__(self) -> None:
        self._thorough_at = time.monotonic()

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if phase != "stop" or info["generation"] != _FULL:
            return
        now = time.monotonic()
        if now - self._thorough_at < THOROUGH_S:
            gc.freeze()
            return
        # The next full collection sees all objects, once.
        self._thorough_at = now
        gc.unfreeze()
