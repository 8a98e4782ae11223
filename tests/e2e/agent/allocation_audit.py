"""After each test: what kubelet's allocations, the containers and the agent report must agree."""

import time
from collections import Counter
from typing import Any

from gpuagent.domain.pods.pod import Holding
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL
from gpuagent.domain.sharing.units import parse_id
from gpuagent.kubelet.pod_resources import PodResources
from tests.e2e.cluster import WAIT_S, Cluster

OURS = ("aliyun.com/", "nvidia.com/gpu")


def holdings(pod_resources: PodResources) -> list[Holding]:
    """What kubelet says containers hold of our resources; asked again where kubelet's rate limit refuses."""
    end = time.monotonic() + WAIT_S
    while (held := pod_resources.list()) is None:
        assert time.monotonic() < end, pod_resources.problem
        time.sleep(0.05)
    return [h for h in held if h.resource.startswith(OURS)]


def audit(cluster: Cluster, pod_resources: PodResources, uuids: dict[str, str], spread_pods: set[str]) -> list[Holding]:
    """No unit held twice; one GPU a share; container environments equal kubelet's allocations. Returns the holdings.

    Args:
        cluster: with the running pods.
        pod_resources: kubelet's pod-resources.
        uuids: GPU key to UUID.
        spread_pods: names of pods that asked for several GPUs.
    """
    held = holdings(pod_resources)
    twice = [device_id for device_id, count in Counter(i for h in held for i in h.ids).items() if count > 1]
    assert not twice, f"held by two containers: {twice}"
    gpus: dict[tuple[str, str], set[str]] = {}
    for holding in held:
        units = [parse_id(device_id) for device_id in holding.ids]
        assert all(units), holding
        keys = {unit.gpu_key for unit in units if unit}
        whole = any(unit.kind.is_whole for unit in units if unit)
        if not whole and holding.owner.pod.name not in spread_pods:
            assert len(keys) == 1, f"a share on several GPUs: {holding}"
        gpus.setdefault((holding.owner.pod.name, holding.owner.container), set()).update(keys)
    for (pod, container), keys in gpus.items():
        try:
            env = cluster.exec_env(pod, container)
        except LookupError:
            continue  # not started yet, or ended
        visible = env["NVIDIA_VISIBLE_DEVICES"].split(",")
        assert sorted(visible) == sorted(uuids[key] for key in keys), (pod, container)
        memory = sum(
            len(h.ids)
            for h in held
            if (h.owner.pod.name, h.owner.container) == (pod, container) and h.resource == "aliyun.com/gpu-mem"
        )
        if memory:
            assert int(env["ALIYUN_COM_GPU_MEM_CONTAINER"]) * len(keys) == memory, (pod, container)
    return held


def spread_pod(name: str, gpus: int, manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with the label that spreads its memory over `gpus` GPUs."""
    manifest["metadata"]["name"] = name
    manifest["metadata"].setdefault("labels", {})[GPU_COUNT_LABEL] = str(gpus)
    return manifest
