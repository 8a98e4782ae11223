"""``python -m tests.retry_failed ARGUMENTS``: pytest, which plays tests that have failed once more before it fails.

Thousands of tests run processes that the machine may hold up at any moment, and a run that holds up a change by chance
teaches people not to look at failures. So `.ci/run` plays the few that have failed again, in a new process and with
new fixtures (for `make e2e`, on a new cluster). A fault of the change fails again. What passes is named at the end: it
is a fault too, of the test or of the product, which has to be found.

It only does so where this can hide nothing: not after more failures than chance explains; not where the audit after a
test has failed, because that tells of a promise that was broken; and not where a run did not end by itself, because
tests may be missing.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

MOST_RETRIED = 5
"""Tests. More at once have one cause, such as a broken machine or a change that breaks much."""
_SUMMARY_FILE = "PYTEST_FAILURE_SUMMARY"
"""Variable of the environment: the file in which the first run leaves its `FailureSummary`."""
_RETRY = ("--last-failed", "--last-failed-no-failures", "none")


@dataclass(frozen=True)
class FailureSummary:
    """What of a run has failed."""

    tests: Sequence[str]
    """IDs of the tests that failed while they were set up or ran."""
    audits: Sequence[str]
    """IDs of the tests after which the teardown failed."""
    crashes: int
    """Processes of pytest-xdist that ended amid their tests."""

    def may_be_retried(self) -> bool:
        return 0 < len(self.tests) <= MOST_RETRIED and not self.audits and not self.crashes


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        summary_file = Path(folder, "summary.json")
        code = _pytest(arguments, {**os.environ, _SUMMARY_FILE: str(summary_file)})
        if code != pytest.ExitCode.TESTS_FAILED:
            return code
        summary = _read(summary_file)
    if not summary.may_be_retried():
        return code
    _say("These tests have failed, and are played again:", summary.tests)
    code = _pytest([*arguments, *_RETRY], os.environ)
    if code == pytest.ExitCode.OK:
        _say("UNSTABLE: failed, and passed when they were played again. Find out why, and mend it:", summary.tests)
    return code


def _pytest(arguments: Sequence[str], environment: dict[str, str] | os._Environ[str]) -> int:
    command = (sys.executable, "-m", "pytest", "-p", "tests.retry_failed", *arguments)
    return subprocess.run(command, env=environment, check=False).returncode


def _read(file: Path) -> FailureSummary:
    return FailureSummary(**json.loads(file.read_text()))


def _say(sentence: str, tests: Sequence[str]) -> None:
    print(f"== {sentence}", *(f"==   {test}" for test in tests), sep="\n", flush=True)


class FailureRecorder:
    """A plugin of pytest that writes the `FailureSummary` at the end of a run."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tests: dict[str, None] = {}
        self._audits: dict[str, None] = {}
        self._crashes = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        failed = self._audits if report.when == "teardown" else self._tests
        failed[report.nodeid] = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: Any) -> None:
        """A process of pytest-xdist has ended; `error` is None if it was done."""
        if error is not None:
            self._crashes += 1

    def pytest_sessionfinish(self) -> None:
        summary = FailureSummary(list(self._tests), list(self._audits), self._crashes)
        self._file.write_text(json.dumps(asdict(summary)))


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if _SUMMARY_FILE in os.environ and not is_worker:
        config.pluginmanager.register(FailureRecorder(Path(os.environ[_SUMMARY_FILE])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
