"""A ResourceSlice that is never stored: the answer to its dry run shows which fields the API server keeps.

The API server drops the fields of a feature gate that is off. If the agent found that out from its slices alone,
claims could get unhealthy GPUs until then: a taint is first sent when a GPU is unhealthy, and is lost.
"""

from typing import Any

from gpuagent.domain.sharing.mode import DRA_DRIVER

Json = dict[str, Any]


def probe_spec(node_name: str, *, counters: bool) -> Json:
    """A spec with each field that the node's slices may have.

    Args:
        node_name: of the agent's node, for which alone it may write slices.
        counters: whether sets of GPUs are to be published, whose devices consume counters.
    """
    device: Json = {
        "name": "probe",
        "attributes": {"type": {"string": "probe"}},
        "allowMultipleAllocations": True,
        "capacity": {"memory": {"value": "1Gi", "requestPolicy": {"default": "1Gi", "validValues": ["1Gi"]}}},
        "taints": [{"key": f"{DRA_DRIVER}/probe", "effect": "NoSchedule"}],
    }
    if counters:
        device["consumesCounters"] = [{"counterSet": "probe", "counters": {"probe": {"value": "1"}}}]
    return {
        "driver": DRA_DRIVER,
        "nodeName": node_name,
        "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
        "devices": [device],
    }
