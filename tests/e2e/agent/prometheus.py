"""Debian's Prometheus, scraping agent or scheduler as an operator's would."""

import json
import re
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.e2e.cluster import WAIT_S
from tests.e2e.cluster.part_logs import register_log

_DCGM = {"DCGM_FI_DEV_SM_CLOCK": 1410, "DCGM_FI_DEV_POWER_USAGE": 300.5, "DCGM_FI_DEV_GPU_TEMP": 85}


def documented(root: Path) -> dict[str, str]:
    """Every PromQL expression of the documents: its file and number to its text."""
    return {
        f"{page.relative_to(root)}#{n}": expression.strip()
        for page in (root / "README.md", *sorted((root / "docs").rglob("*.md")))
        for n, expression in enumerate(re.findall(r"```promql\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    }


class Prometheus:
    """One server, asked through its HTTP API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **arguments: str) -> Any:
        """`data` of the answer. Raises OSError while nobody answers, or for what cannot be asked."""
        with urllib.request.urlopen(
            f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(arguments)}", timeout=WAIT_S
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

    def wait(self, expression: str, wanted: Callable[[list[dict[str, Any]]], Any] = bool) -> list[dict[str, Any]]:
        """The answer once it is as wanted: not empty, if nothing else is said. Raises TimeoutError.

        All series of a target are gone for a moment after each scrape that a busy machine does not answer in time.
        """
        end = time.monotonic() + WAIT_S
        while not wanted(result := self.query(expression)):
            if time.monotonic() > end:
                raise TimeoutError(f"{expression} is {result}")
            time.sleep(0.1)
        return result

    def wait_alert(self, name: str, wanted: Callable[[str], bool]) -> None:
        """Until the only alert of that name has such a description. Raises TimeoutError."""
        end = time.monotonic() + WAIT_S
        while True:
            alerts = self.ask("alerts")["alerts"]
            texts = [alert["annotations"]["description"] for alert in alerts if alert["labels"]["alertname"] == name]
            if len(texts) == 1 and wanted(texts[0]):
                return
            if time.monotonic() > end:
                raise TimeoutError(f"the descriptions of {name} are {texts}")
            time.sleep(0.1)

    def wait_refused(self, expression: str, status: int) -> None:
        """Until the server refuses to evaluate the expression: without data there is nothing to refuse."""
        end = time.monotonic() + WAIT_S
        while True:
            try:
                result = self.query(expression)
            except urllib.error.HTTPError as error:
                assert error.code == status, error
                return
            if time.monotonic() > end:
                raise TimeoutError(f"{expression} is {result}")
            time.sleep(0.1)


@contextmanager
def dcgm_exporter(gpus: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """Serve series with the labels of dcgm-exporter, one for each GPU and metric; yields the port."""
    lines = [f"# TYPE {name} gauge" for name in _DCGM]
    for n, gpu in enumerate(gpus):
        labels = f'gpu="{n}",UUID="{gpu["uuid"]}",device="nvidia{n}",modelName="{gpu["model"]}",Hostname="gpu-node"'
        lines += [f"{name}{{{labels}}} {value}" for name, value in _DCGM.items()]
    page = "\n".join([*lines, ""]).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="dcgm-exporter")
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def prometheus(workdir: Path, port: int, rules: Path, **jobs: int) -> Iterator[Prometheus]:
    """A server at `port` that scrapes every second; `jobs` are the names of jobs and the ports of their targets."""
    workdir.mkdir()
    config = workdir / "prometheus.yml"
    labels = {"instance": "gpu-node"}
    scraped = [
        {
            "job_name": name,
            "honor_labels": True,
            "static_configs": [{"targets": [f"127.0.0.1:{target}"], "labels": labels}],
        }
        for name, target in jobs.items()
    ]
    every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config.write_text(json.dumps({"global": every, "rule_files": [str(rules)], "scrape_configs": scraped}))
    command = ("prometheus", f"--config.file={config}", f"--storage.tsdb.path={workdir / 'data'}")
    register_log("prometheus", workdir / "log")
    with (workdir / "log").open("wb") as log:
        process = subprocess.Popen((*command, f"--web.listen-address=127.0.0.1:{port}"), stdout=log, stderr=log)
    try:
        server, end = Prometheus(port), time.monotonic() + WAIT_S
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
        process.wait(WAIT_S)
