"""The startup taint keeps pods off a node until the node shows its amounts."""

from gpuagent.domain.reconcile.desired_node import same_quantity
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.state import State


def shows_amounts(state: State) -> bool:
    """Whether every resource of the mode is above 0, with the same amount on kubelet's lists and on the Node.

    The Node may still show amounts from before a reboot, so kubelet must also follow every list. In a mode without
    resources, that is enough. In mode dra, kubelet must accept the driver, and a published GPU be free of taints.
    """
    connected = state.advertised.connected
    follows_lists = connected.issuperset(state.policy.resources.names)
    if not state.node.mode_known or not follows_lists:
        return False
    if state.node.mode is Mode.DRA:
        untainted, _ = state.claims.devices
        if not state.claims.registered or not untainted:
            return False
    return all(_shows(state, resource) for resource in state.resource_kinds)


def taint_to_remove(state: State) -> str:
    """Key of the taint to remove now; empty for none."""
    if state.has_startup_taint and shows_amounts(state):
        return state.policy.startup_taint
    return ""


def _shows(state: State, resource: str) -> bool:
    blocks = state.advertised.lists.get(resource, ())
    healthy = sum(block.healthy_units for block in blocks)
    if healthy <= 0:
        return False
    amount = state.node.allocatable.get(resource, 0)
    return same_quantity(str(amount), str(healthy))
