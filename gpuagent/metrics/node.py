"""Values of the agent, its node and its resources."""

from collections import Counter

from gpuagent import __version__
from gpuagent.domain.dra.isolation import serving_layer, serving_mode
from gpuagent.domain.sharing.isolation_layers import LIMITS
from gpuagent.domain.sharing.mode import DRA_DRIVER, PROMISES, Mode
from gpuagent.domain.status.problems import is_ready
from gpuagent.metrics import families as f
from gpuagent.metrics.reading import Labels, MetricValues, Reading, Values


def node(reading: Reading) -> MetricValues:
    """The metrics of the agent and its node."""
    mode_switch = reading.derived.switch
    yield f.BUILD, {(__version__,): 1}
    yield f.DRIVER, _driver(reading)
    yield f.READY, _single(is_ready(reading.state))
    yield f.PROBLEMS, _problems(reading)
    yield f.MODE, _modes(reading)
    yield f.SWITCHING, _single(mode_switch.phase != "steady")
    yield f.WAITING, _single(len(mode_switch.waiting_for))
    yield f.ISOLATION, _isolation(reading)
    yield f.LIMITS_REPAIRED, _limits_repaired(reading)
    yield f.HEALTH_WATCH, _single(reading.health_watch_up)
    yield f.UNTIED_XIDS, _untied_xids(reading)
    yield f.WATCH, _watches(reading)
    yield f.ATTRIBUTION, _attribution(reading)


def _limits_repaired(reading: Reading) -> Values:
    """Memory limits that were set again."""
    layer = reading.state.isolation.layers.get(LIMITS)
    if layer is None:
        return {}
    return {(why,): count for why, count in layer.repaired.items()}


def _single(value: float) -> Values:
    """The value of a metric without labels."""
    return {(): float(value)}


def _problems(reading: Reading) -> Values:
    """How many problems there are, by reason and severity."""
    return Counter((problem.reason, problem.severity) for problem in reading.derived.problems)


def _modes(reading: Reading) -> Values:
    """1 for the mode in force, 0 for the others."""
    in_force = reading.state.node.mode
    return {(str(mode),): float(mode is in_force) for mode in Mode}


def _untied_xids(reading: Reading) -> Values:
    """XIDs that the driver reported without a GPU."""
    counts = reading.state.health.untied_xids
    return {(str(xid),): count for xid, count in counts.items()}


def _attribution(reading: Reading) -> Values:
    """Whether processes are found in containers; not known while the driver lists none."""
    if not reading.use.strays:
        return {}
    return _single(reading.use.pids_seen)


def _driver(reading: Reading) -> Values:
    gpus = reading.state.gpus
    answers = gpus.driver_problem is None
    if not answers or not gpus.driver_version:
        return {}
    return {(gpus.driver_version,): 1}


def _watches(reading: Reading) -> Values:
    """Whether each watch of the API server is up; none without an API server."""
    if not reading.api:
        return {}
    state = reading.state
    has_node = state.node.object is not None and state.node.problem is None
    watches: dict[Labels, float] = {
        ("nodes",): float(has_node),
        ("pods",): float(state.pods.watched),
    }
    if state.node.mode is Mode.DRA:
        has_slices = state.claims.followed and state.claims.problem is None
        watches["resourceslices",] = float(has_slices)
    return watches


def _isolation(reading: Reading) -> Values:
    mode = serving_mode(reading.state)
    if not PROMISES[mode]:
        return {}
    layer = serving_layer(reading.state)
    keeps_promise = layer.keeps(mode)
    return {(layer.driver,): float(keeps_promise)}


def resources(reading: Reading) -> MetricValues:
    """The metrics of each resource."""
    yield f.REGISTERED, _registered(reading)
    yield f.REGISTRATIONS, _registrations(reading)
    yield f.DEVICES, _devices(reading)
    yield f.LIST_BYTES, _list_bytes(reading)


def _registered(reading: Reading) -> Values:
    registered: dict[Labels, float] = {}
    for resource, view in reading.endpoints.items():
        registered[resource,] = float(view.registered)
    if _publishes(reading):
        registered[DRA_DRIVER,] = float(reading.state.claims.registered)
    return registered


def _registrations(reading: Reading) -> Values:
    views = reading.endpoints
    return {(resource,): view.registrations for resource, view in views.items()}


def _list_bytes(reading: Reading) -> Values:
    views = reading.endpoints
    return {(resource,): view.list_bytes for resource, view in views.items()}


def _devices(reading: Reading) -> Values:
    """Devices by resource and health; 0 for a resource that the mode does not advertise."""
    state = reading.state
    devices: Counter[Labels] = Counter()
    for resource, blocks in state.advertised.lists.items():
        devices[resource, "healthy"] = 0
        devices[resource, "unhealthy"] = 0
        for block in blocks:
            devices[resource, "healthy"] += block.healthy_units
            devices[resource, "unhealthy"] += block.listed - block.healthy_units
    if _publishes(reading):
        untainted, tainted = state.claims.devices
        devices[DRA_DRIVER, "healthy"] = untainted
        devices[DRA_DRIVER, "unhealthy"] = tainted
    return devices


def _publishes(reading: Reading) -> bool:
    """Whether the node has devices for claims instead of device lists."""
    return reading.state.node.mode is Mode.DRA
