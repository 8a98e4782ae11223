"""Which pods the log has warned of already. Each audit would repeat it."""

import threading
from collections.abc import Collection


class Warned:
    """The topics of each pod's warnings. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: dict[str, set[str]] = {}

    def is_first(self, uid: str, topic: str) -> bool:
        """Whether the log has no such line of this pod yet. From now on, it has."""
        with self._lock:
            topics = self._topics.setdefault(uid, set())
            is_first = topic not in topics
            topics.add(topic)
        return is_first

    def forget(self, ended: Collection[str]) -> None:
        """Drop these pods, by UID."""
        with self._lock:
            for uid in ended:
                self._topics.pop(uid, None)
