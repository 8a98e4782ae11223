"""The one cluster of an end-to-end run."""

import traceback
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from simworld.recorded import check
from tests.e2e import build
from tests.e2e.cluster import Cluster
from tests.e2e.cluster.part_logs import SinceTestBegan
from tests.e2e.cluster.recorder import Recorder

OLDER_KUBELET = "1.30"
_BEGAN = pytest.StashKey[SinceTestBegan]()
_CHECKED = pytest.StashKey[list[str]]()
FAILED = pytest.StashKey[bool]()
"""Whether a part of the test has failed so far."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In each file, tests of the older kubelet come last: it stays for the rest of the file."""
    places: dict[Path, int] = {}
    for item in items:
        places.setdefault(item.path, len(places))
    items.sort(key=lambda item: (places[item.path], _needs_older_kubelet(item)))


def _needs_older_kubelet(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    return call is not None and call.params.get("kubelet") == OLDER_KUBELET


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_BEGAN] = SinceTestBegan()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows the logs of all parts, as they are before anything is taken down."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
        if began := item.stash.get(_BEGAN, None):
            report.sections += began.sections()
    return report


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Up and with a ready node; a test that stops something starts it again. At the end, its recording is read."""
    missing = build.missing()
    if missing:
        pytest.fail(f"run `python tests/e2e/build.py` first; missing: {', '.join(missing)}", pytrace=False)
    workdir = tmp_path_factory.mktemp("cluster")
    with Cluster(workdir) as running:
        with Recorder(running.client, workdir / "recorded-node.jsonl") as recorder:
            yield running
    _check_recording(request.config, recorder)


def _check_recording(config: pytest.Config, recorder: Recorder) -> None:
    """Say at the end of the run what was checked. A broken promise fails the run, and is told there as a story.

    The test that it fails is the last one of the cluster, whatever that was: the story names the pods.
    """
    told = config.stash.setdefault(_CHECKED, [])
    if recorder.failure is not None:
        # Without all that happened, what is recorded may look like a fault.
        told.append(f"{recorder.path}: the recorder of the node has failed: {recorder.failure!r}")
        return
    try:
        verdict = check(recorder.path)
    except Exception:  # a fault of the checker says nothing about the cluster
        told += [f"{recorder.path}: the checker has failed:", *traceback.format_exc().splitlines()]
        return
    told += verdict.lines()
    if verdict.story:
        pytest.fail("a promise was broken in this run, see the story at its end", pytrace=False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands what it has checked to the process that reports."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["checked"] = session.config.stash.get(_CHECKED, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker has ended. What it checked is lost if it has crashed."""
    output = getattr(node, "workeroutput", {})
    node.config.stash.setdefault(_CHECKED, []).extend(output.get("checked", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    checked = config.stash.get(_CHECKED, [])
    if checked:
        terminalreporter.section("promises over the whole run")
    for line in checked:
        terminalreporter.line(line)


@pytest.fixture(scope="session")
def agent_archives() -> Mapping[str, Path]:
    """The agent's image by architecture, built from this tree's Dockerfile, as docker-archives."""
    archives = {name: build.agent_archive(name) for name in build.AGENT_ARCHITECTURES}
    if not all(archive.exists() for archive in archives.values()):
        pytest.fail("the agent's image of this tree is not built: run `python tests/e2e/build.py`", pytrace=False)
    return archives


@pytest.fixture(scope="session")
def agent_image(cluster: Cluster, agent_archives: Mapping[str, Path]) -> str:
    """The name of that image, which is now on the node."""
    cluster.import_images(agent_archives[build.architecture()])
    return build.AGENT_IMAGE
