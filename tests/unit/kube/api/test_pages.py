"""Large lists come in pages, of one version, and start over where the server no longer has it."""

import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from gpuagent.kube.api import pages
from gpuagent.kube.api.api_errors import ApiConfigError, ApiError
from gpuagent.kube.api.client import Client
from gpuagent.kube.api.overrides import Overrides
from gpuagent.kube.api.pages import list_pages
from standin.api.server import ApiServer

PODS = "/api/v1/pods"


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    monkeypatch.setattr(pages, "PAGE", 3)


@pytest.fixture
def client(server, tmp_path):
    """Nothing is silent here: a busy machine gets the time it needs."""
    made = Client(str(server.write_kubeconfig(tmp_path / "kubeconfig")))
    yield made
    made.close()


def name(found):
    return found["metadata"]["name"]


def test_a_list_comes_whole_in_pages_and_keeps_what_is_asked_for(client, server):
    for n in range(8):
        server.create_pod(f"p{n}")
    listed = list_pages(client, PODS, lambda pod: name(pod) if name(pod) != "p4" else None)
    assert listed.items == ["p0", "p1", "p2", "p3", "p5", "p6", "p7"]
    assert listed.version == str(server.objects.version)
    assert server.requests["list pods"] == 3


def test_every_page_is_of_the_version_of_the_first(client, server):
    for n in range(7):
        server.create_pod(f"p{n}")

    def keep(pod):
        if name(pod) == "p0":
            server.create_pod("p9")
            server.delete_pod("p5")
        return name(pod)

    assert list_pages(client, PODS, keep).items == [f"p{n}" for n in range(7)]


def test_a_list_whose_version_is_forgotten_begins_anew(client, server):
    for n in range(7):
        server.create_pod(f"p{n}")
    left = [1]

    def keep(pod):
        if name(pod) == "p2" and left:
            left.pop()
            server.delete_pod("p1")
            server.expire()
        return name(pod)

    assert list_pages(client, PODS, keep).items == ["p0", "p2", "p3", "p4", "p5", "p6"]


def test_a_list_that_is_forgotten_again_and_again_ends(client, server):
    for n in range(7):
        server.create_pod(f"p{n}")
    with pytest.raises(ApiError, match="410") as caught:
        list_pages(client, PODS, lambda _: server.expire())
    assert caught.value.status == 410
    assert server.requests["list pods"] == 2 * pages.MOST_STARTS


def test_selectors_hold_for_every_page(client, server):
    for n in range(9):
        server.create_pod(f"p{n}", labels={"app": "a" if n % 2 else "b"}, node="" if n == 3 else None)
    params = {"labelSelector": "app=a", "fieldSelector": "spec.nodeName!="}
    assert list_pages(client, PODS, name, params).items == ["p1", "p5", "p7"]


@pytest.fixture
def page_of_a_pod() -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(b"up 1\n")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found.server_address[1]
        found.shutdown()
        thread.join()


def test_a_page_of_a_pod_is_fetched_through_the_api_server(client, server, page_of_a_pod):
    server.create_pod("agent")
    server.patch_pod("agent", {"status": {"podIP": "127.0.0.1"}}, subresource="status")
    path = f"/api/v1/namespaces/default/pods/agent:{page_of_a_pod}/proxy"
    assert client.text(f"{path}/metrics") == "up 1\n"
    with pytest.raises(ApiError, match="404"):
        client.text(f"{path}/nothing")
    server.deny("get", "pods/proxy")
    with pytest.raises(ApiError, match='allow verb "get" on resource "pods/proxy"'):
        client.text(f"{path}/metrics")


def test_a_pod_that_does_not_answer_is_reported(client, server, page_of_a_pod):
    server.create_pod("agent")
    server.patch_pod("agent", {"status": {"podIP": "127.0.0.1"}}, subresource="status")
    with pytest.raises(ApiError, match="error trying to reach service"):
        client.text("/api/v1/namespaces/default/pods/agent:1/proxy/metrics")


def kubeconfig(path, server: ApiServer, *names: str):
    config = json.loads(server.write_kubeconfig(path).read_text())
    config["contexts"] = [{"name": one, "context": {"cluster": "standin", "user": "standin"}} for one in names]
    del config["current-context"]
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def test_a_context_is_taken_by_name_and_one_that_is_not_there_is_reported(server, tmp_path):
    file = str(kubeconfig(tmp_path / "config", server, "één", "two"))
    made = Client(file, overrides=Overrides(context="één"), compressed=True)
    assert len(list(made.page("/api/v1/nodes")[1])) == 1
    made.close()
    with pytest.raises(ApiConfigError, match="has no context 'three'; it has één, two"):
        Client(file, overrides=Overrides(context="three")).connect()


def test_several_files_are_joined(server, tmp_path):
    one, two = (kubeconfig(tmp_path / name, server, name) for name in ("one", "two"))
    made = Client(f"{one}:{two}", overrides=Overrides(context="two"))
    assert len(list(made.page("/api/v1/nodes")[1])) == 1
    made.close()


class RefusesSecondPage:
    """Answers 429 so many times to the second page."""

    def __init__(self, times, after):
        self.left = times
        self._after = after

    def page(self, _path, params=None):
        if "continue" in params and self.left:
            self.left -= 1
            raise ApiError(429, "TooManyRequests", "later", retry_after_s=self._after)
        more = {} if "continue" in params else {"continue": "x"}
        return {"resourceVersion": "1", **more}, iter([{"n": 1}, None, 7])


def test_a_page_that_is_put_off_is_asked_for_again_when_the_server_says(monkeypatch):
    slept = []
    monkeypatch.setattr(pages.time, "sleep", slept.append)
    assert list_pages(RefusesSecondPage(2, 3), "/x", lambda found: found).items == [{"n": 1}, {"n": 1}]
    assert slept == [3, 3]


@pytest.mark.parametrize(("times", "after"), [(9, 1), (1, None), (1, 3600)])
def test_a_page_that_is_put_off_for_too_long_is_reported(monkeypatch, times, after):
    monkeypatch.setattr(pages.time, "sleep", lambda _: None)
    with pytest.raises(ApiError, match="429 TooManyRequests"):
        list_pages(RefusesSecondPage(times, after), "/x", lambda found: found)
