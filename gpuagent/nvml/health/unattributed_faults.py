"""Faults that the driver attributes to no GPU that the agent watches."""

import threading

UNATTRIBUTED_S = 1.0
"""An event without a GPU reaches every event set; it is reported once in this time."""


class UnattributedFaults:
    """Which of these faults were reported already. Used by all threads that wait for events."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reported_at: dict[tuple[int | None, int], float] = {}

    def is_new(self, address: int | None, xid: int, at: float) -> bool:
        """Whether no other thread has had this fault; from now on it is reported."""
        fault = address, xid
        with self._lock:
            # Otherwise the record would grow with every fault.
            self._forget_before(at - UNATTRIBUTED_S)
            if fault in self._reported_at:
                return False
            self._reported_at[fault] = at
            return True

    def _forget_before(self, oldest: float) -> None:
        self._reported_at = {fault: at for fault, at in self._reported_at.items() if at >= oldest}
