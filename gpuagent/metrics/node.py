"""Values of the agent, its node and its resources."""

from collections import Counter

from gpuagent import __version__
from gpuagent.domain.dra.isolation import serving_layer, serving_mode
from gpuagent.domain.sharing.mode import DRA_DRIVER, PROMISES, Mode
from gpuagent.metrics import families as f
from gpuagent.metrics.reading import MetricValues, Reading


def node(reading: Reading) -> MetricValues:
    """The metrics of the agent and its node."""
    state, progress, found = reading.state, reading.derived.switch, reading.derived.problems
    yield f.BUILD, {(__version__,): 1}
    driver = state.gpus.driver_version if state.gpus.driver_problem is None else ""
    yield f.DRIVER, {(driver,): 1} if driver else {}
    yield f.READY, {(): float(not any(problem.blocking for problem in found))}
    yield f.PROBLEMS, {(reason,): count for reason, count in Counter(p.reason for p in found).items()}
    yield f.MODE, {(str(mode),): float(mode is state.node.mode) for mode in Mode}
    yield f.SWITCHING, {(): float(progress.phase != "steady")}
    yield f.WAITING, {(): len(progress.waiting_for)}
    yield f.ISOLATION, _isolation(reading)
    yield f.HEALTH_WATCH, {(): float(reading.health_watch_up)}
    yield f.UNTIED_XIDS, {(str(xid),): count for xid, count in state.health.untied_xids.items()}
    watches = {"nodes": state.node.object is not None and state.node.problem is None, "pods": state.pods.watched}
    if state.node.mode is Mode.DRA:
        watches["resourceslices"] = state.claims.followed and state.claims.problem is None
    yield f.WATCH, {(name,): float(up) for name, up in watches.items()} if reading.api else {}
    yield f.ATTRIBUTION, {(): float(reading.use.pids_seen)} if reading.use.strays else {}


def _isolation(reading: Reading) -> dict[tuple[str, ...], float]:
    mode, layer = serving_mode(reading.state), serving_layer(reading.state)
    return {(layer.driver,): float(layer.keeps(mode))} if PROMISES[mode] else {}


def resources(reading: Reading) -> MetricValues:
    """The metrics of each resource."""
    views = reading.endpoints
    claims, publishes = reading.state.claims, reading.state.node.mode is Mode.DRA
    registered = {name: view.registered for name, view in views.items()}
    registered |= {DRA_DRIVER: claims.registered} if publishes else {}
    yield f.REGISTERED, {(name,): float(one) for name, one in registered.items()}
    yield f.REGISTRATIONS, {(name,): view.registrations for name, view in views.items()}
    devices: Counter[tuple[str, ...]] = Counter()
    for resource, blocks in reading.state.advertised.lists.items():
        devices.update({(resource, health): 0 for health in ("healthy", "unhealthy")})
        for block in blocks:
            devices[resource, "healthy" if block.healthy else "unhealthy"] += block.count
    if publishes:
        devices[DRA_DRIVER, "healthy"], devices[DRA_DRIVER, "unhealthy"] = claims.devices
    yield f.DEVICES, devices
    yield f.LIST_BYTES, {(name,): view.list_bytes for name, view in views.items()}
