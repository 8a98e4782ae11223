"""The state with which an agent begins, before any part has reported."""

from collections.abc import Collection, Mapping

from gpuagent.domain.node_state.device_lists import Advertised
from gpuagent.domain.node_state.isolation_drivers import IsolationDrivers
from gpuagent.domain.node_state.node_object import Node
from gpuagent.domain.node_state.pod_list import Pods
from gpuagent.domain.node_state.resizes import Resizes
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.sharing.resize import Resize
from gpuagent.domain.state import State
from gpuagent.settings.settings import Settings
from gpuagent.system.last_mode import LastMode


def first_state(
    settings: Settings, remembered: LastMode, drivers: Collection[str], resizes: Mapping[str, Resize] | None = None
) -> State:
    """The settings, what the last run stored, and isolation drivers that have not reported yet."""
    stored = remembered.load()
    mode = settings.mode or stored
    return State(
        policy=settings.policy,
        node=Node(mode=mode or Mode.DEFAULT, mode_known=mode is not None),
        pods=_stored_pods(settings, remembered),
        advertised=Advertised(lists=dict.fromkeys(settings.resources.names, ())),
        isolation=IsolationDrivers(
            layers={name: Layer(driver=name, installed=False) for name in drivers},
            unreported=frozenset(drivers),
        ),
        resizes=Resizes(stored=resizes or {}, to_store=resizes or {}),
    )


def _stored_pods(settings: Settings, remembered: LastMode) -> Pods:
    """What is known of the node's pods before the API server has shown them."""
    if not settings.uses_api_server:
        return Pods()  # nothing would show a decision
    return Pods(decided_before=remembered.scheduler_seen, presumed_decided=remembered.schedulers)
