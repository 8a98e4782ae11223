"""Debian's Prometheus, scraping the agent as an operator's would."""

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_CONFIG = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: gpuagent
    honor_labels: true
    static_configs: [{{targets: ["127.0.0.1:{target}"], labels: {{instance: gpu-node}}}}]
"""


class Prometheus:
    """One server, asked through its HTTP API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **arguments: str) -> Any:
        """`data` of the answer. Raises OSError while nobody answers, or for what cannot be asked."""
        with urllib.request.urlopen(
            f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(arguments)}", timeout=5
        ) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that the expression gives now: ``{"metric": {…}, "value": […, "1"]}``."""
        result: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return result

    def value(self, expression: str) -> float | None:
        """Of the only series; None if there is none."""
        result = self.query(expression)
        assert len(result) < 2, result
        return float(result[0]["value"][1]) if result else None

    def wait(self, expression: str, wanted: Callable[[list[dict[str, Any]]], Any] = bool, timeout: float = 60) -> None:
        """Until the answer is as wanted: not empty, if nothing else is said. Raises TimeoutError."""
        end = time.monotonic() + timeout
        while not wanted(self.query(expression)):
            if time.monotonic() > end:
                raise TimeoutError(f"{expression} is {self.query(expression)}")
            time.sleep(0.1)


@contextmanager
def prometheus(workdir: Path, port: int, target: int, rules: Path) -> Iterator[Prometheus]:
    """A server at `port` that scrapes the agent at `target` every second."""
    workdir.mkdir()
    config = workdir / "prometheus.yml"
    config.write_text(_CONFIG.format(target=target, rules=rules))
    command = ("prometheus", f"--config.file={config}", f"--storage.tsdb.path={workdir / 'data'}")
    with (workdir / "log").open("wb") as log:
        process = subprocess.Popen((*command, f"--web.listen-address=127.0.0.1:{port}"), stdout=log, stderr=log)
    try:
        server, end = Prometheus(port), time.monotonic() + 30
        while True:
            try:
                server.query("1")
                break
            except OSError:
                assert time.monotonic() < end, (workdir / "log").read_text()[-3000:]
                time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.wait(20)
