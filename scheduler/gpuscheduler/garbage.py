"""Keeps Python's garbage collections short, as no call is answered meanwhile.

A full collection looks at all objects. With the pods of a large cluster, it takes 50 ms and more.
"""

import gc
from typing import Any

_NEW, _YOUNG, _OLD = 700, 10, 3
"""Python's own thresholds but for the last one, which is 10: a full collection after fewer new objects takes less."""
_FULL = 2


def keep_collections_short() -> None:
    """Have no collection look at the objects that are there now, nor again at those that a full one has seen.

    They are freed as always when nothing refers to them any more. Only cycles among them are not found, and neither
    pods nor nodes are part of one.
    """
    gc.collect()
    gc.freeze()
    # The next full one would wait until a quarter as many objects came as the last one has seen. This one sees few.
    gc.collect()
    gc.set_threshold(_NEW, _YOUNG, _OLD)
    if _freeze not in gc.callbacks:
        gc.callbacks.append(_freeze)


def _freeze(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == _FULL:
        gc.freeze()
