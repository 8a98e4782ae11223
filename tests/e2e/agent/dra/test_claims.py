"""Mode `dra`: claims on the stock scheduler and the real kubelet, without an extender."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inspectcgpu.cli import run
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.dra.claims import (
    CLAIMS,
    DRIVER,
    SLICE,
    SLICES,
    claiming,
    devices,
    of,
    sharing,
    tainted,
    template,
    uid,
    wait_files,
)
from tests.e2e.agent.podannotations import event
from tests.e2e.cluster import WAIT_S, Cluster, pod_manifest

MEM = "aliyun.com/gpu-mem"


@pytest.fixture
def two_sizes(cluster: Cluster) -> Iterator[str]:
    """A template for a share and a whole GPU in one claim."""
    made, other = template("two-sizes", "gpu-share.gpuagent.io", memory="4Gi"), template("", "gpu-share.gpuagent.io")
    requests = made["spec"]["spec"]["devices"]["requests"]
    requests += [one | {"name": "whole"} for one in other["spec"]["spec"]["devices"]["requests"]]
    cluster.apply(made)
    yield "two-sizes"
    cluster.api("DELETE", cluster.client.path_of(made))


def test_a_share_runs_with_its_gpu(node: Node) -> None:
    node.run(claiming("one", "share-8g"))
    env = node.cluster.exec_env("one")
    assert env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "8"
    assert env["NVIDIA_VISIBLE_DEVICES"] in {gpu["uuid"] for gpu in node.agent.status()["gpus"]}


def test_two_whole_gpus_run_beside_shares(node: Node) -> None:
    node.run(claiming("share", "share-8g"))
    node.run(claiming("whole", "two"))
    env = node.cluster.exec_env("whole")
    gpus = env["NVIDIA_VISIBLE_DEVICES"].split(",")
    assert len(gpus) == 2
    assert not {*gpus} & {*node.gpus_of("share")}
    assert not any(name.startswith("ALIYUN_COM_GPU_MEM") for name in env)
    minors = {str(gpu["minor"]) for gpu in node.agent.status()["gpus"] if gpu["uuid"] in gpus}
    assert {f"nvidia{minor}" for minor in minors} <= set(node.cluster.container_devices("whole"))


def test_shares_fill_one_gpu_and_then_the_next(node: Node) -> None:
    """80 GiB and 20 sharers a GPU: twenty shares of 4 GiB fill one exactly."""
    names = [f"share-{n}" for n in range(24)]
    for name in names:
        node.pods.append(name)
        node.cluster.create_pod(claiming(name, "share-4g"))
    for name in names:
        node.cluster.wait_phase(name, "Running")
    assert sorted(Counter(node.gpus_of(name)[0] for name in names).values()) == [4, 20]


def test_the_files_of_a_claim_go_with_its_pod_also_while_the_agent_is_away(node: Node) -> None:
    node.run(claiming("one", "share-8g"))
    node.run(claiming("two", "share-8g"))
    wait_files(node, 2)
    node.end("one")
    wait_files(node, 1)
    node.agent.kill()
    node.cluster.delete_pod("two", grace=1, timeout=0)
    node.agent.start()
    node.cluster.wait_pod_gone("two")
    node.pods.remove("two")
    wait_files(node, 0)


def test_the_slice_comes_back_when_it_is_deleted_and_when_kubelet_restarts(node: Node) -> None:
    node.run(claiming("one", "share-8g"))
    slice_of = node.cluster.client.wait(SLICES, SLICE, bool)
    node.cluster.api("DELETE", f"{SLICES}/{SLICE}")
    again = node.cluster.client.wait(SLICES, SLICE, lambda found: uid(found) not in {"", uid(slice_of)})
    node.cluster.restart_kubelet()  # which deletes the node's slices
    node.cluster.client.wait(SLICES, SLICE, lambda found: uid(found) not in {"", uid(again)})
    node.run(claiming("two", "share-8g"))
    assert node.gpus_of("one") == node.gpus_of("two")


def test_a_node_goes_over_to_claims_and_back_under_running_pods(make_node: Callable[..., Node], classes: None) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    node.cluster.client.wait(SLICES, SLICE, lambda found: found is None)  # that of the test before has gone
    node.run(pod_manifest("units", {MEM: 8}))
    held = node.gpus_of("units")
    node.label("dra")
    node.wait_amounts()
    node.cluster.client.wait(SLICES, SLICE, lambda found: found is not None and len(tainted(found)) == 1)
    node.cluster.restart_scheduler()
    node.run(claiming("claim", "share-8g"))
    assert node.gpus_of("claim") != held
    node.label("share")
    node.cluster.client.wait(SLICES, SLICE, lambda found: not found)
    node.wait_amounts(mem=560)
    node.end("claim")
    node.wait_amounts(mem=640)


def test_a_claim_that_was_allocated_before_the_node_left_the_mode_is_refused_aloud(
    node: Node, cluster: Cluster
) -> None:
    """Kubelet starts the pod late, as it waits for a volume. Its user learns what to do, and it is enough."""
    cluster.apply(of("ResourceClaim", "ours", devices("gpu-share.gpuagent.io", memory="8Gi"), "default"))
    manifest = sharing("late", "ours")
    manifest["spec"]["volumes"] = [{"name": "late", "configMap": {"name": "late"}}]
    manifest["spec"]["containers"][0]["volumeMounts"] = [{"name": "late", "mountPath": "/late"}]
    node.pods.append("late")
    cluster.create_pod(manifest)
    cluster.wait_pod("late", lambda pod: bool(pod["spec"].get("nodeName")))
    node.label("share")
    node.wait_amounts(mem=640)
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late", "namespace": "default"}}
    cluster.apply({**config_map, "data": {"a": "b"}})
    event(node, "late", "GPURefused", "The node has left mode dra for mode share, which gives its GPUs to other pods")
    node.restart_agent(node.agent.kill)
    node.end("late")
    wait_files(node, 0)
    # The claim stays, and the scheduler chooses again for its next pod.
    cluster.client.wait(CLAIMS, "ours", lambda claim: claim is not None and "allocation" not in claim.get("status", {}))
    node.label("dra")
    node.run(manifest)
    node.end("late")
    cluster.api("DELETE", cluster.client.path_of(config_map))
    cluster.api("DELETE", f"{CLAIMS}/ours")


def test_people_see_who_has_how_much_by_which_claim(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.run(claiming("one", "share-8g"))
    (held,) = node.gpus_of("one")

    def shown(page: dict[str, Any]) -> bool:
        return any(one["container"] == "default/one[main]" for gpu in page["gpus"] for one in gpu["containers"])

    # On a busy machine, something may have been late for a moment, which is a problem until it has come.
    page = node.agent.wait(lambda page: shown(page) and not page["problems"])
    assert page["resources"][DRIVER]["stage"] == "connected"
    (gpu,) = [gpu for gpu in page["gpus"] if gpu["containers"]]
    (share,) = gpu["containers"]
    assert (gpu["uuid"], share["units"], share["claim"].startswith("default/one-main-")) == (held, 8, True)
    series = f'UUID="{held}",gpu="{gpu["minor"]}",namespace="default",pod="one",container="main"'
    metrics = (node.agent.page("metrics") or b"").decode()
    assert f"gpuagent_container_gpu_memory_limit_bytes{{{series}}} {float(8 << 30)}" in metrics
    assert f'gpuagent_gpu_memory_allocated_bytes{{UUID="{held}",gpu="{gpu["minor"]}"}} {float(8 << 30)}' in metrics
    assert f"gpuagent_container_claim_info{{{series}," in metrics
    assert run(["--kubeconfig", str(node.cluster.kubeconfig()), "--no-agents", "-o", "json"], {}) == 0
    (shown_node,) = json.loads(capsys.readouterr().out)["nodes"]
    assert shown_node["amounts"][MEM] == {"allocated": 8, "total": 640, "percent": 1}
    (pod,) = shown_node["pods"]
    assert (pod["name"], pod["gpus"][MEM]) == ("one", [{"gpu": gpu["minor"], "units": 8}])


def test_a_claim_that_cannot_be_prepared_is_an_event_and_is_counted(node: Node, two_sizes: str) -> None:
    node.pods.append("odd")
    manifest = claiming("odd", two_sizes)
    (first,) = manifest["spec"]["containers"]
    one = {"name": "main", "request": "gpu"}
    first["resources"]["claims"] = [one, {"name": "main", "request": "whole"}]
    manifest["spec"]["containers"].append({**first, "name": "side", "resources": {"claims": [one]}})
    node.cluster.create_pod(manifest)

    event(node, "odd", "GPURefused", "would mix up their variables")
    wait_metric(node, f'method="NodePrepareResources",reason="mixed_resources",resource="{DRIVER}"')


def wait_metric(node: Node, text: str) -> None:
    """Wait until the agent's metrics have it: the call is counted when it ends, after its Event was sent."""
    end = time.monotonic() + WAIT_S
    while text not in (metrics := (node.agent.page("metrics") or b"").decode()):
        assert time.monotonic() < end, metrics
        time.sleep(0.1)
