"""The API server's audit log: what the agent's users have asked for, and kubelet's watch of its pods."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .manifests import Json
from .pki import NODE_USER


@dataclass(frozen=True)
class AuditLog:
    """Grows by one JSON object a line; a position in it stands for a moment."""

    path: Path

    def position(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def events(self, since: int = 0) -> Iterator[Json]:
        if not self.path.exists():
            return
        with self.path.open("rb") as log:
            log.seek(since)
            for line in log:
                # The last one may still be in the writing.
                if line.endswith(b"\n"):
                    yield json.loads(line)

    def kubelet_watches(self, since: int) -> bool:
        """Whether kubelet's watch of its pods was answered since then, and goes on: a server that has just started may
        end it at once.
        """
        going_on = set()
        for event in self.events(since):
            if event["user"]["username"] == NODE_USER and event["verb"] == "watch":
                if event["stage"] == "ResponseStarted" and event["responseStatus"]["code"] == 200:
                    going_on.add(event["auditID"])
                elif event["stage"] == "ResponseComplete":
                    going_on.discard(event["auditID"])
        return bool(going_on)
