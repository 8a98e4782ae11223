"""`--waste`: who holds GPU memory without using it, from the agents' pages alone."""

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gpuagent.domain.fleet.held_use import HeldUse, read_held_uses
from gpuagent.domain.fleet.waste import waste
from gpuagent.domain.pods.pod import PodName
from inspectcgpu.flags import WASTE_COLUMNS
from inspectcgpu.show.waste import document, sorted_by, waste_lines
from tests.unit.inspectcgpu.sample_cluster import add_node
from tests.unit.inspectcgpu.test_status import PAGE, add_pod

GIB = 1 << 30


def use(namespace: str, pod: str, held: float | None, used: float | None, idle_s: int | None = 0) -> HeldUse:
    """Amounts in GiB."""
    held_bytes = None if held is None else round(held * GIB)
    used_bytes = None if used is None else round(used * GIB)
    # At its peak it used half a GiB more than usual.
    peak_bytes = None if used_bytes is None else used_bytes + GIB // 2
    return HeldUse(PodName(namespace, pod), held_bytes, used_bytes, idle_s, peak_bytes)


NOT_KNOWN = (
    "- the memory that 1 of 4 pods use is not known: their agents have not seen it yet, or do not see the host's "
    "processes, because the chart value metrics.perContainerUse is false or the node is itself a container (as in kind)"
)
USES = {
    "n1": [
        use("ml", "train", 10, 9.5),
        use("ml", "train", 10, 9),  # its other GPU
        use("web", "chat", 8, 2, 7500),
        use("web", "chat", 8, 2, 9000),
    ],
    "n2": [use("ml", "notebook", 10, 0, 90_000), use("web", "new", 4, None, None)],
}


def test_the_most_waste_comes_first_with_sums_by_namespace() -> None:
    lines = waste_lines(waste(USES, ["node n3: no answer"]), colour=False)
    assert lines == [
        "NAMESPACE  PODS  HELD(GiB)  USED P95(GiB)  PEAK(GiB)  UNUSED(GiB)  IDLE FOR 1h",
        "web        2     20.0       >=4.0          >=5.0      >=12.0       >=1",
        "ml         2     30.0       18.5           20.0       11.5         1",
        "",
        "NAMESPACE  POD       NODE  HELD(GiB)  USED P95(GiB)  PEAK(GiB)  UNUSED(GiB)  IDLE FOR",
        "web        chat      n1    16.0       4.0            5.0        12.0         2h5m",
        "ml         notebook  n2    10.0       0.0            0.5        10.0         1d1h",
        "ml         train     n1    20.0       18.5           19.5       1.5          0s",
        "web        new       n2    4.0        -              -          -            -",
        NOT_KNOWN,
        "- node n3: no answer",
    ]


def test_what_no_pod_of_a_namespace_shows_is_not_known_and_comes_last() -> None:
    uses = [use("ml", "new", 4, None, None), use("ml", "newer", 4, None, None), use("web", "full", 1, 1)]
    answer = waste({"n1": uses}, [])
    assert waste_lines(answer, colour=False)[1:3] == [
        "web        1     1.0        1.0            1.5        0.0          0",
        "ml         2     8.0        -              -          -            -",
    ]
    unknown = document(answer)["namespaces"][1]
    assert (unknown["usedP95Bytes"], unknown["unusedBytes"], unknown["podsIdle"]) == (None, None, None)
    assert (unknown["heldBytes"], unknown["lowerBounds"]) == (8 * GIB, [])


def test_a_sum_without_some_pods_is_marked_as_a_lower_bound() -> None:
    _, web = document(waste(USES, []))["namespaces"][::-1]
    assert (web["namespace"], web["heldBytes"], web["unusedBytes"]) == ("web", 20 * GIB, 12 * GIB)
    assert web["lowerBounds"] == ["podsIdle", "usedP95Bytes", "usedPeakBytes", "unusedBytes"]


def test_a_namespace_on_two_nodes_is_as_one_on_one_node() -> None:
    uses = [*USES["n1"], *USES["n2"]]
    (first,) = waste({"n1": USES["n1"]}, [], "web").namespaces
    (second,) = waste({"n2": USES["n2"]}, [], "web").namespaces
    assert [first + second] == waste({"n1": uses}, [], "web").namespaces


def test_one_namespace() -> None:
    answer = waste(USES, [], "ml")
    assert [summed.namespace for summed in answer.namespaces] == ["ml"]
    assert {pod.pod.name for pod in answer.pods} == {"train", "notebook"}


def test_a_pod_is_idle_only_if_all_of_it_is() -> None:
    (pod,) = waste({"n1": [use("a", "b", 1, 0, 9000), use("a", "b", 1, 0, None)]}, []).pods
    assert pod.idle_s is None
    (pod,) = waste({"n1": [use("a", "b", 1, 0, 9000), use("a", "b", 1, 0, 5)]}, []).pods
    assert pod.idle_s == 5


@pytest.mark.parametrize("odd", [None, -1, True, "7", 1.5, 1 << 60, [], {}])
def test_odd_values_of_a_page_are_not_known(odd: Any) -> None:
    amounts = dict.fromkeys(["held_bytes", "used_p95_bytes", "used_peak_bytes", "idle_s"], odd)
    row = {"namespace": "ml", "pod": "a", **amounts}
    assert read_held_uses({"usage": [row]}) == (HeldUse(PodName("ml", "a"), None, None, None),)
    assert read_held_uses({"usage": [odd, {"pod": odd}]}) == ()
    assert read_held_uses({"usage": odd}) == ()
    assert read_held_uses({}) is None


ROW = {
    "uuid": "GPU-1",
    "namespace": "ml",
    "container": "main",
    "held_bytes": 8 * GIB,
    "used_p95_bytes": GIB,
    "used_peak_bytes": 2 * GIB,
    "idle_s": 90,
}


@pytest.fixture
def page() -> dict[str, Any]:
    return {**PAGE, "usage": [{**ROW, "pod": "a\x1b[2J"}]}


@pytest.fixture
def flags(server: Any, page: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The flags with the port of an agent on n1 that answers with the page."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(page).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    add_node(server, "n1", gpus=1, mem=15)
    add_pod(server)
    pages = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=pages.serve_forever, args=(0.01,))
    thread.start()
    yield "--waste", "--agent-port", str(pages.server_address[1])
    pages.shutdown()
    thread.join()
    pages.server_close()


def test_agents_are_asked_through_the_api_server(call: Any, flags: tuple[str, ...]) -> None:
    code, out, err = call(*flags)
    assert (code, err) == (0, "")
    assert "ml         a\ufffd[2J  n1    8.0        1.0            2.0        7.0          1m" in out
    shown = json.loads(call(*flags, "-o", "json")[1])
    assert shown["namespaces"] == [
        {
            "namespace": "ml",
            "pods": 1,
            "podsUnknown": 0,
            "podsIdle": 0,
            "heldBytes": 8 * GIB,
            "usedP95Bytes": GIB,
            "usedPeakBytes": 2 * GIB,
            "unusedBytes": 7 * GIB,
            "lowerBounds": [],
        }
    ]
    assert [(pod["node"], pod["idleSeconds"]) for pod in shown["pods"]] == [("n1", 90)]
    assert yaml.safe_load(call(*flags, "-o", "yaml")[1]) == shown


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["-n", "other"], " of namespace other"),
        (["-n", "other", "n1"], " of namespace other on node n1"),
        (["-n", "other", "-l", "!zone"], " of namespace other on nodes with the labels !zone"),
        (["-n", "other", "--no-headers"], " of namespace other"),
    ],
)
def test_an_empty_answer_names_what_was_asked_for(
    call: Any, flags: tuple[str, ...], words: list[str], place: str
) -> None:
    assert call(*flags, *words) == (0, "", f"no agent reports a pod{place} that holds a GPU\n")


def test_a_mistyped_namespace_has_the_one_that_was_meant(call: Any, flags: tuple[str, ...]) -> None:
    _, _, err = call(*flags, "-n", "mll")
    assert err == "no agent reports a pod of namespace mll that holds a GPU; did you mean ml?\n"


def test_a_node_without_gpus_is_named(server: Any, call: Any, flags: tuple[str, ...]) -> None:
    server.objects.create("nodes", "", {"metadata": {"name": "cpu-1"}})
    code, out, err = call(*flags, "cpu-1")
    assert (code, out, err) == (0, "", "kubectl-inspect-cgpu: node cpu-1 has no GPUs to share or to place\n")


ORDERS = {
    "pod": ["chat", "new", "notebook", "train"],
    "namespace": ["notebook", "train", "chat", "new"],
    "node": ["chat", "train", "notebook", "new"],
    "held": ["train", "chat", "notebook", "new"],
    "used": ["train", "chat", "notebook", "new"],
    "peak": ["train", "chat", "notebook", "new"],
    "unused": ["chat", "notebook", "train", "new"],
    "idle": ["notebook", "chat", "train", "new"],
}
"""Names of pods. What is not known comes last, and equal ones are by their waste."""


@pytest.mark.parametrize("column", WASTE_COLUMNS)
def test_pods_and_namespaces_are_sorted_by_a_column(column: str) -> None:
    answer = sorted_by(waste(USES, []), column)
    assert [pod.pod.name for pod in answer.pods] == ORDERS[column]
    by_namespace = {"namespace": ["ml", "web"], "held": ["ml", "web"], "used": ["ml", "web"], "peak": ["ml", "web"]}
    assert [summed.namespace for summed in answer.namespaces] == by_namespace.get(column, ["web", "ml"])


def test_the_order_holds_for_programs_too(call: Any, flags: tuple[str, ...], page: dict[str, Any]) -> None:
    more = {**page["usage"][0], "namespace": "web", "pod": "large", "held_bytes": 80 * GIB, "used_p95_bytes": 80 * GIB}
    page["usage"].append(more)
    default = json.loads(call(*flags, "-o", "json")[1])
    by_held = json.loads(call(*flags, "--sort-by", "HELD", "-o", "json")[1])
    assert [pod["namespace"] for pod in default["pods"]] == ["ml", "web"]
    assert [pod["namespace"] for pod in by_held["pods"]] == ["web", "ml"]
    assert call(*flags, "--sort-by=held", "--no-headers")[1].split()[0] == "web"


def test_without_headers_only_pods_are_printed(call: Any, flags: tuple[str, ...]) -> None:
    assert call(*flags, "--no-headers") == (0, "ml  a\ufffd[2J  n1  8.0  1.0  2.0  7.0  1m\n", "")


def test_an_agent_of_a_former_version_is_named(call: Any, flags: tuple[str, ...], page: dict[str, Any]) -> None:
    del page["usage"]
    code, out, _ = call(*flags)
    assert code == 0
    assert "- node n1: its agent is of a version that does not report" in out


def test_an_agent_that_does_not_answer_is_named(server: Any, call: Any) -> None:
    add_node(server, "n1", gpus=1, mem=15)
    add_pod(server)
    code, out, err = call("--waste", "--agent-port", "1")
    assert (code, err) == (0, "no agent reports a pod that holds a GPU\n")
    assert "- node n1: " in out


def test_nodes_whose_agents_the_user_may_not_see_are_named(server: Any, call: Any, flags: tuple[str, ...]) -> None:
    """Such a node may have an agent, so that an empty answer is not known to be true."""
    add_node(server, "n2", gpus=1, mem=15)
    server.deny("list", "pods")
    code, out, _ = call(*flags)
    assert code == 0
    assert "- left out, because the agents' pods cannot be listed and the nodes do not name an agent: n1, n2. " in out
    assert 'allow verb "list" on resource "pods"' in out


def test_a_node_without_an_agent_is_no_news_for_a_user_who_may_see_all(server: Any, call: Any) -> None:
    add_node(server, "n2", gpus=1, mem=15)
    assert call("--waste") == (0, "", "no agent reports a pod that holds a GPU\n")


def test_a_node_that_there_is_not_is_named(call: Any) -> None:
    assert call("--waste", "n7")[::2] == (1, "kubectl-inspect-cgpu: there is no node n7\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--no-agents"], "leave out --no-agents"),
        (["-d"], "leave out --details"),
        (["--health"], "leave out --health"),
        (["-w"], "leave out --watch"),
        (["-o", "name"], "use -o json"),
    ],
)
def test_flags_that_do_not_go_with_it(call: Any, arguments: list[str], text: str) -> None:
    code, _, err = call("--waste", *arguments)
    assert (code, text in err) == (2, True)
