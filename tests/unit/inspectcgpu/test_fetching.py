"""Asking many agents: how long, in which order, and what is given up."""

import itertools
import json
import queue
import threading
from types import SimpleNamespace

from gpuagent.kube.api.api_errors import ApiUnreachable, refused
from inspectcgpu.fetch import fetching
from inspectcgpu.fetch.fetching import Task, fetch
from standin.waiting import PATIENCE_S

PAGE = json.dumps({"memory_unit": "GiB", "gpus": []})
METRICS = 'gpuagent_container_gpu_memory_used_bytes{namespace="n",pod="p"} 5\n'


class Agents:
    """What a client gets; `answer` may wait or raise."""

    def __init__(self, answer=None):
        self.paths = []
        self._answer = answer or (lambda path: METRICS if path.endswith("metrics") else PAGE)

    def text(self, path):
        self.paths.append(path)
        return self._answer(path)


def tasks(count, *, metrics=True):
    return [Task(f"n{n}", f"/n{n}", metrics) for n in range(count)]


def test_both_pages_of_a_node_come_before_those_of_the_next(monkeypatch):
    monkeypatch.setattr(fetching, "AT_A_TIME", 1)
    agents = Agents()
    pages = fetch(agents, tasks(3), 20)
    assert agents.paths == ["/n0/status", "/n0/metrics", "/n1/status", "/n1/metrics", "/n2/status", "/n2/metrics"]
    assert all(page.view and page.usage and not page.metrics_problem for page in pages.values())


def test_the_longest_wait_grows_with_the_number_of_agents():
    assert [fetching.deadline_s(5, nodes) for nodes in (1, 249, 250, 5000)] == [5, 5, 10, 105]


def test_silence_of_the_rest_keeps_what_has_come(monkeypatch):
    ends = threading.Event()
    came = itertools.count(1)

    class AfterTheOthers(queue.SimpleQueue):
        """The wait ends early only once both pages of two agents came, however busy the machine is."""

        def get(self, timeout):
            return super().get(timeout=timeout if next(came) > 4 else PATIENCE_S)

    monkeypatch.setattr(fetching, "queue", SimpleNamespace(SimpleQueue=AfterTheOthers, Empty=queue.Empty))

    def answer(path):
        if path == "/n1/status":
            ends.wait(PATIENCE_S)
        return METRICS if path.endswith("metrics") else PAGE

    pages = fetch(Agents(answer), tasks(3), 0.3)
    ends.set()
    assert [page.view is not None for page in pages.values()] == [True, False, True]
    assert pages["n1"].problem == pages["n1"].metrics_problem == "no answer within 0.3 s"


def test_what_rbac_refuses_once_is_asked_no_more(monkeypatch):
    monkeypatch.setattr(fetching, "AT_A_TIME", 1)

    def answer(_path):
        raise refused("get", "pods/proxy", "", 'User "u" cannot get resource "pods/proxy"')

    agents = Agents(answer)
    pages = fetch(agents, tasks(3), 20)
    assert agents.paths == ["/n0/status"]
    assert all('allow verb "get" on resource "pods/proxy"' in page.metrics_problem for page in pages.values())


def test_an_agent_that_is_away_is_not_asked_for_its_other_page():
    def answer(_path):
        raise ApiUnreachable("away")

    agents = Agents(answer)
    assert fetch(agents, tasks(1), 20)["n0"].metrics_problem == "away"
    assert agents.paths == ["/n0/status"]
