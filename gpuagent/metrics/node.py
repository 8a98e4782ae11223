"""Values of the agent, its node and its resources."""

from collections import Counter

from gpuagent import __version__
from gpuagent.domain.dra.isolation import serving_layer, serving_mode
from gpuagent.domain.sharing.mode import DRA_DRIVER, PROMISES, Mode
from gpuagent.metrics import families as f
from gpuagent.metrics.reading import Labels, MetricValues, Reading, Values


def node(reading: Reading) -> MetricValues:
    """The metrics of the agent and its node."""
    state = reading.state
    problems = reading.derived.problems
    mode_switch = reading.derived.switch
    is_ready = not any(problem.blocking for problem in problems)
    by_reason = Counter(problem.reason for problem in problems)
    yield f.BUILD, {(__version__,): 1}
    yield f.DRIVER, _driver(reading)
    yield f.READY, {(): float(is_ready)}
    yield f.PROBLEMS, {(reason,): count for reason, count in by_reason.items()}
    yield f.MODE, {(str(mode),): float(mode is state.node.mode) for mode in Mode}
    yield f.SWITCHING, {(): float(mode_switch.phase != "steady")}
    yield f.WAITING, {(): len(mode_switch.waiting_for)}
    yield f.ISOLATION, _isolation(reading)
    yield f.HEALTH_WATCH, {(): float(reading.health_watch_up)}
    yield f.UNTIED_XIDS, {(str(xid),): count for xid, count in state.health.untied_xids.items()}
    yield f.WATCH, _watches(reading)
    yield f.ATTRIBUTION, {(): float(reading.use.pids_seen)} if reading.use.strays else {}


def _driver(reading: Reading) -> Values:
    gpus = reading.state.gpus
    if gpus.driver_problem is not None or not gpus.driver_version:
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
    layer = serving_layer(reading.state)
    if not PROMISES[mode]:
        return {}
    return {(layer.driver,): float(layer.keeps(mode))}


def resources(reading: Reading) -> MetricValues:
    """The metrics of each resource."""
    views = reading.endpoints
    claims = reading.state.claims
    publishes = reading.state.node.mode is Mode.DRA
    registered: dict[Labels, float] = {(name,): float(view.registered) for name, view in views.items()}
    if publishes:
        registered[DRA_DRIVER,] = float(claims.registered)
    yield f.REGISTERED, registered
    yield f.REGISTRATIONS, {(name,): view.registrations for name, view in views.items()}
    devices: Counter[Labels] = Counter()
    for resource, blocks in reading.state.advertised.lists.items():
        devices[resource, "healthy"] = 0
        devices[resource, "unhealthy"] = 0
        for block in blocks:
            devices[resource, "healthy" if block.healthy else "unhealthy"] += block.count
    if publishes:
        untainted, tainted = claims.devices
        devices[DRA_DRIVER, "healthy"] = untainted
        devices[DRA_DRIVER, "unhealthy"] = tainted
    yield f.DEVICES, devices
    yield f.LIST_BYTES, {(name,): view.list_bytes for name, view in views.items()}
