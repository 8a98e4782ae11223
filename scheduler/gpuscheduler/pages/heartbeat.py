"""Whether the scheduler's loop still turns. Other threads answer the probes, so an answer alone does not say so."""

import asyncio
import time

BEAT_S = 1.0
STALLED_S = 10.0
"""How long the loop may stand still. Reading 50,000 pods takes it a second or two at a time."""


class Heartbeat:
    """Set by the loop, read by threads."""

    def __init__(self) -> None:
        self._turned_at = time.monotonic()

    async def run(self) -> None:
        """Beat until canceled."""
        while True:
            self._turned_at = time.monotonic()
            await asyncio.sleep(BEAT_S)

    def problem(self) -> str | None:
        """That the loop stands still; None if it turns."""
        still_s = time.monotonic() - self._turned_at
        return f"the scheduler's event loop has stood still for {still_s:.0f} s" if still_s > STALLED_S else None
