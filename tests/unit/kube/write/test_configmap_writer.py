"""ConfigMaps are kept as they shall be, whatever others and the server do."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuagent.domain.events import ReportsKept
from gpuagent.domain.policy import Policy
from gpuagent.domain.reconcile.configmap import ConfigMapFacts
from gpuagent.domain.state import State
from gpuagent.kube.api.client import Client, Timeouts
from gpuagent.kube.cluster_sync import ClusterSync
from gpuagent.kube.write.configmap_writer import ConfigMapWriter
from gpuagent.kube.write.keyed_reconciler import Delays
from gpuagent.system.backoff import Backoff
from standin.api.objects import Json, Key
from standin.api.server import ApiServer
from standin.waiting import PATIENCE_S

REPORT = ConfigMapFacts(
    "kube-system",
    "n1-report",
    {"ack.node.gpu.schedule": "topology", "nodename": "n1"},
    {"devices": "[]"},
    frozenset({"devices"}),
)
ABSENT = replace(REPORT, data=None)
OTHER = ConfigMapFacts("kube-system", "other-n1", {"nodename": "n1"}, {"0": "down"})
KEY: Key = ("configmaps", "kube-system", "n1-report")
PATH = "/api/v1/namespaces/kube-system/configmaps"
WRITES = ("create configmaps", "patch configmaps", "delete configmaps")

Make = Callable[..., ConfigMapWriter]


@pytest.fixture
def problems() -> list[str | None]:
    return []


@pytest.fixture
def make(client: Client, quick: Callable[[], Backoff], problems: list[str | None]) -> Iterator[Make]:
    """Makes and starts; ends with the test."""
    made: list[ConfigMapWriter] = []

    def make(api: Any = client, **named: Any) -> ConfigMapWriter:
        delays = Delays(**{"backoff": quick, "pace": lambda: Backoff(0.0, 0.0), **named})
        made.append(ConfigMapWriter(api, problems.append, delays))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def maps(make: Make) -> ConfigMapWriter:
    return make()


def patch(server: ApiServer, body: Json) -> None:
    server.objects.patch(KEY, "", body, strategic=False)


def data(server: ApiServer) -> Json | None:
    found = server.config_map("n1-report")
    return None if found is None else found.get("data", {})


def writes(server: ApiServer) -> int:
    return sum(server.requests[write] for write in WRITES)


def test_it_is_made_as_desired(server: ApiServer, maps: ConfigMapWriter) -> None:
    maps.desire((REPORT, OTHER))
    assert maps.flush(PATIENCE_S)
    found = server.config_map("n1-report")
    assert found
    assert (found["data"], found["metadata"]["labels"]) == (REPORT.data, REPORT.labels)
    assert server.config_map("other-n1")
    assert server.requests["create configmaps"] == 2
    assert maps.problem == ""


def test_nothing_is_sent_while_nothing_is_desired(server: ApiServer, maps: ConfigMapWriter) -> None:
    maps.desire(())
    assert maps.flush(PATIENCE_S)
    assert not [request for request in server.requests if "configmaps" in request]


def test_a_change_is_one_patch(server: ApiServer, maps: ConfigMapWriter) -> None:
    maps.desire((REPORT,))
    assert maps.flush(PATIENCE_S)
    maps.desire((replace(REPORT, data={"devices": "[1]", "more": "x"}),))
    assert maps.flush(PATIENCE_S)
    assert data(server) == {"devices": "[1]", "more": "x"}
    maps.desire((replace(REPORT, data={"devices": "[1]", "more": None}),))
    assert maps.flush(PATIENCE_S)
    assert data(server) == {"devices": "[1]"}
    assert server.requests["patch configmaps"] == 2


def test_what_is_right_is_read_and_left_alone(server: ApiServer, maps: ConfigMapWriter, make: Make) -> None:
    maps.desire((REPORT,))
    assert maps.flush(PATIENCE_S)
    for _ in range(3):
        maps.desire((replace(REPORT),))  # equal, as from an event that changed nothing of it
    assert maps.flush(PATIENCE_S)
    assert server.requests["get configmaps"] == 1
    restarted = make()
    restarted.desire((REPORT,))
    assert restarted.flush(PATIENCE_S)
    assert (server.requests["get configmaps"], writes(server)) == (2, 1)
    make(recheck_s=0.02).desire((REPORT,))
    assert server.wait(lambda: server.requests["get configmaps"] >= 5)
    assert writes(server) == 1


def test_what_others_added_stays(server: ApiServer, maps: ConfigMapWriter) -> None:
    maps.desire((REPORT,))
    assert maps.flush(PATIENCE_S)
    patch(server, {"metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}}, "data": {"theirs": "c"}})
    maps.desire((replace(REPORT, data={"devices": "[1]"}),))
    assert maps.flush(PATIENCE_S)
    found = server.config_map("n1-report")
    assert found
    assert found["data"] == {"devices": "[1]", "theirs": "c"}
    assert found["metadata"]["labels"] == {**REPORT.labels, "team": "a"}
    assert found["metadata"]["annotations"] == {"note": "b"}


def test_one_that_somebody_else_made_gets_what_is_ours(server: ApiServer, maps: ConfigMapWriter) -> None:
    server.objects.create("configmaps", "kube-system", {"metadata": {"name": "n1-report"}, "data": {"theirs": "c"}})
    maps.desire((REPORT,))
    assert maps.flush(PATIENCE_S)
    assert data(server) == {"devices": "[]", "theirs": "c"}


def test_deletion_and_edits_are_mended_by_and_by(server: ApiServer, make: Make) -> None:
    make(recheck_s=0.05).desire((REPORT,))
    assert server.wait(lambda: data(server))
    server.objects.delete(KEY)
    assert server.wait(lambda: data(server) == REPORT.data)
    patch(server, {"data": {"devices": "nonsense"}, "metadata": {"labels": {"nodename": None}}})
    assert server.wait(lambda: data(server) == REPORT.data)
    found = server.config_map("n1-report")
    assert found
    assert found["metadata"]["labels"] == REPORT.labels


def test_it_is_deleted_when_it_shall_not_exist(server: ApiServer, make: Make) -> None:
    maps = make(recheck_s=0.02)
    maps.desire((REPORT, OTHER))
    assert maps.flush(PATIENCE_S)
    maps.desire((ABSENT, OTHER))
    assert maps.flush(PATIENCE_S)
    assert server.config_map("n1-report") is None
    assert server.config_map("other-n1")
    read = server.requests["get configmaps"]
    assert server.wait(lambda: server.requests["get configmaps"] >= read + 4)
    assert server.requests["delete configmaps"] == 1


def test_one_that_shall_not_exist_and_may_not_be_looked_at_is_no_problem(
    server: ApiServer, maps: ConfigMapWriter
) -> None:
    server.deny("get", "configmaps")
    maps.desire((ABSENT,))
    assert maps.flush(PATIENCE_S)
    assert maps.problem == ""
    maps.desire((REPORT,))
    assert server.wait(lambda: maps.problem)


def test_a_failure_ends_with_the_wish(server: ApiServer, maps: ConfigMapWriter, problems: list[str | None]) -> None:
    server.deny("create", "configmaps")
    maps.desire((REPORT,))
    assert server.wait(lambda: bool(problems))
    maps.desire(())
    assert server.wait(lambda: problems[-1] is None)


def test_one_that_is_not_ours_is_not_deleted(server: ApiServer, maps: ConfigMapWriter) -> None:
    labels = {**REPORT.labels, "nodename": "n2"}
    server.objects.create("configmaps", "kube-system", {"metadata": {"name": "n1-report", "labels": labels}})
    maps.desire((ABSENT,))
    assert maps.flush(PATIENCE_S)
    assert server.config_map("n1-report")
    assert writes(server) == 0


def test_one_that_is_not_desired_any_more_is_left_as_it_is(server: ApiServer, make: Make) -> None:
    maps = make(recheck_s=0.02)
    maps.desire((REPORT,))
    assert maps.flush(PATIENCE_S)
    maps.desire((OTHER,))
    read = server.requests["get configmaps"]
    assert server.wait(lambda: server.requests["get configmaps"] >= read + 4)
    assert data(server) == REPORT.data


@pytest.mark.parametrize("verb", ["get", "create", "patch", "delete"])
def test_a_refusal_is_reported_once_and_names_every_right(
    server: ApiServer, maps: ConfigMapWriter, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "gpuagent.kube.write.keyed_reconciler")
    if verb in ("patch", "delete"):
        server.objects.create(
            "configmaps", "kube-system", {"metadata": {"name": "n1-report", "labels": dict(REPORT.labels)}}
        )
    server.deny(verb, "configmaps")
    maps.desire((ABSENT if verb == "delete" else REPORT,))
    assert server.wait(lambda: server.requests[f"{verb} configmaps"] >= 3)
    assert "config map kube-system/n1-report: RBAC refuses" in maps.problem
    assert f'allow verb "{verb}" on resource "configmaps"' in maps.problem
    assert "needs get, create, patch and delete on configmaps in namespace kube-system" in maps.problem
    assert len([record for record in caplog.records if record.message == "Failed to write"]) == 1
    server.allow(verb, "configmaps")
    assert maps.flush(PATIENCE_S)
    assert maps.problem == ""
    assert data(server) == (None if verb == "delete" else REPORT.data)


def test_one_refusal_does_not_stop_the_others(server: ApiServer, maps: ConfigMapWriter) -> None:
    bad = replace(OTHER, labels={"nodename": "n" * 64})
    maps.desire((bad, REPORT))
    assert server.wait(lambda: data(server) == REPORT.data)
    assert server.wait(lambda: "config map kube-system/other-n1: the API server answers 422 Invalid" in maps.problem)
    maps.desire((OTHER, REPORT))
    assert maps.flush(PATIENCE_S)
    assert maps.problem == ""


def test_the_server_goes_and_comes_back(server: ApiServer, maps: ConfigMapWriter) -> None:
    server.stop()
    maps.desire((REPORT,))
    assert not maps.flush(0.1)
    assert server.wait(lambda: "cannot be reached" in maps.problem)
    server.start()
    assert maps.flush(PATIENCE_S)
    assert data(server) == REPORT.data


def test_a_server_that_is_seen_again_is_asked_at_once(server: ApiServer, make: Make) -> None:
    maps = make(backoff=lambda: Backoff(first_s=60))
    server.stop()
    maps.desire((REPORT,))
    assert server.wait(lambda: maps.problem)
    server.start()
    maps.nudge()
    assert maps.flush(PATIENCE_S)


class InterruptedClient:
    """A client that runs `meddle` between its read and its write, `times` times."""

    def __init__(self, client: Client, meddle: Callable[[], object], times: int) -> None:
        self._client = client
        self._meddle = meddle
        self._times = times

    def get(self, path: str) -> Json:
        try:
            return self._client.get(path)
        finally:
            if self._times:
                self._times -= 1
                self._meddle()

    def create(self, path: str, body: Mapping[str, Any]) -> Json:
        return self._client.create(path, body)

    def patch(self, path: str, body: Mapping[str, Any]) -> Json:
        return self._client.patch(path, body)

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> Json:
        return self._client.delete(path, body)


def theirs(server: ApiServer) -> Json:
    return server.objects.create("configmaps", "kube-system", {"metadata": {"name": "n1-report"}, "data": {"a": "b"}})


def test_one_that_somebody_makes_meanwhile_is_looked_at_again(server: ApiServer, client: Client, make: Make) -> None:
    maps = make(InterruptedClient(client, lambda: theirs(server), 1))
    maps.desire((REPORT,))
    assert maps.flush(PATIENCE_S)
    assert data(server) == {"a": "b", "devices": "[]"}
    assert server.requests["get configmaps"] == 2


def test_one_that_somebody_edits_meanwhile_is_looked_at_again(server: ApiServer, client: Client, make: Make) -> None:
    theirs(server)
    maps = make(InterruptedClient(client, lambda: patch(server, {"data": {"devices": "[]", "a": "c"}}), 1))
    maps.desire((REPORT,))
    assert maps.flush(PATIENCE_S)
    assert data(server) == {"a": "c", "devices": "[]"}


def test_one_that_somebody_deletes_meanwhile_is_made(server: ApiServer, client: Client, make: Make) -> None:
    theirs(server)
    maps = make(InterruptedClient(client, lambda: server.objects.delete(KEY), 1))
    maps.desire((REPORT,))
    assert maps.flush(PATIENCE_S)
    assert data(server) == {"devices": "[]"}


def test_one_that_somebody_takes_over_meanwhile_is_not_deleted(server: ApiServer, client: Client, make: Make) -> None:
    server.objects.create(
        "configmaps", "kube-system", {"metadata": {"name": "n1-report", "labels": dict(REPORT.labels)}}
    )
    maps = make(InterruptedClient(client, lambda: patch(server, {"metadata": {"labels": {"nodename": "n2"}}}), 1))
    maps.desire((ABSENT,))
    assert maps.flush(PATIENCE_S)
    assert server.config_map("n1-report")
    assert server.requests["delete configmaps"] == 1


def test_a_fight_ends_in_a_pause_not_in_a_storm(server: ApiServer, client: Client, make: Make) -> None:
    theirs(server)
    turns = iter(range(1000))
    meddler = InterruptedClient(client, lambda: patch(server, {"data": {"a": str(next(turns))}}), 1000)
    maps = make(meddler, backoff=lambda: Backoff(first_s=60))
    maps.desire((REPORT,))
    assert server.wait(lambda: "another client writes it again and again" in maps.problem)
    assert server.requests["patch configmaps"] == 3


def test_what_is_desired_during_a_call_is_not_lost(server: ApiServer, client: Client, make: Make) -> None:
    late = replace(REPORT, data={"devices": "[1]"})
    made: list[ConfigMapWriter] = []
    maps = make(InterruptedClient(client, lambda: made[0].desire((late,)), 1))
    made.append(maps)
    maps.desire((REPORT,))
    assert maps.flush(PATIENCE_S)
    assert data(server) == late.data


def test_an_odd_answer_does_not_end_the_thread(
    server: ApiServer, client: Client, maps: ConfigMapWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "get", lambda _: {"kind": "ConfigMap"})
    maps.desire((REPORT,))
    assert server.wait(lambda: maps.problem)
    monkeypatch.undo()
    assert maps.flush(PATIENCE_S)


def test_it_stops_while_the_server_hangs(server: ApiServer, maps: ConfigMapWriter) -> None:
    server.pause()
    maps.desire((REPORT,))
    assert server.wait(lambda: server.server and server.server.connections)
    maps.stop(0.1)
    assert "kube-configmaps" in {thread.name for thread in threading.enumerate()}, "it is not waited for"
    server.resume()


def test_stop_before_start_is_harmless(client: Client) -> None:
    ConfigMapWriter(client).stop()


def test_the_kube_side_desires_what_the_report_says(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gpuagent.domain.reconcile.topology_report.config_maps", lambda _, node: (replace(REPORT, data={"node": node}),)
    )
    posted: list[Any] = []
    side = ClusterSync(server.write_kubeconfig(tmp_path / "config"), "n1", posted.append)
    server.deny("create", "configmaps")
    side.start()
    side.desire(State(policy=Policy()))
    assert server.wait(lambda: [one for one in posted if isinstance(one, ReportsKept)])
    server.allow("create", "configmaps")
    assert server.wait(lambda: data(server) == {"node": "n1"})
    assert server.wait(lambda: len([one for one in posted if isinstance(one, ReportsKept)]) == 2)
    side.stop()
    refused, mended = (one for one in posted if isinstance(one, ReportsKept))
    assert "the agent needs get, create, patch and delete on configmaps" in (refused.problem or "")
    assert mended.problem is None


def test_the_kube_side_stops_in_time_while_the_server_hangs(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuagent.domain.reconcile.topology_report.config_maps", lambda *_: (REPORT,))
    monkeypatch.setattr(
        "gpuagent.kube.cluster_sync.Client",
        lambda config, answered: Client(config, Timeouts(call_s=PATIENCE_S), answered=answered),
    )
    server.pause()
    side = ClusterSync(server.write_kubeconfig(tmp_path / "config"), "n1", lambda _: None)
    side.start()
    side.desire(State(policy=Policy()))
    assert server.wait(lambda: server.server and len(server.server.connections) == 3)
    side.stop()
    left = {thread.name for thread in threading.enumerate()}
    assert {"kube-node", "kube-pods", "kube-configmaps"} <= left, "what hangs is not waited for"
    server.resume()
