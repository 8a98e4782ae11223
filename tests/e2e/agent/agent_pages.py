"""What an agent tells on its port, however it was started."""

import http.client
import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from tests.e2e.cluster import WAIT_S

_NO_ISOLATION = ("IsolationDisabled", "IsolationMissing")
_ANSWER_S = 60.0
"""For an agent that is there: one that is not refuses the connection at once."""


class AgentPages:
    """The pages of the agent that listens at a port of this machine.

    Attributes:
        disturbed: whether a test has ended it, injected a fault or changed its mode.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.disturbed = False

    def log_text(self) -> str:
        """What it has logged."""
        raise NotImplementedError

    def page(self, path: str) -> bytes | None:
        """A page of the agent's port; None while it says no or is not there."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=_ANSWER_S) as answer:
                return bytes(answer.read())
        except (OSError, http.client.HTTPException):  # the latter is of one that ends in the middle of its answer
            return None

    def status(self) -> dict[str, Any]:
        return self._json("status")

    def _json(self, path: str) -> dict[str, Any]:
        return dict(json.loads(self.page(path) or b"{}"))

    def wait(
        self, wanted: Callable[[dict[str, Any]], bool], timeout: float = WAIT_S, *, path: str = "status"
    ) -> dict[str, Any]:
        """The page once it is as wanted.

        Raises:
            TimeoutError: with the page and the end of the log.
        """
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            page = self._json(path)
            if page and wanted(page):
                return page
            time.sleep(0.05)
        tail = self.log_text()[-3000:]
        raise TimeoutError(f"not in {timeout:g} s; {path} says {json.dumps(self._json(path))[:3000]}\n{tail}")

    def wait_ready(self) -> None:
        self.wait(self._is_ready)

    def _is_ready(self, page: dict[str, Any]) -> bool:
        """As kubelet's probe has it. Without isolation an agent never is, though kubelet has all that it advertises."""
        if any(problem["reason"] in _NO_ISOLATION for problem in page["problems"]):
            return all(resource["registered"] for resource in page["resources"].values())
        return self.page("readyz") is not None
