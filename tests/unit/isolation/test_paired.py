"""The driver `limits` for memory together with `mps` for compute."""

from dataclasses import replace

import pytest

from gpuagent.domain.dra.isolation import layer_mode
from gpuagent.domain.node_state.isolation_drivers import IsolationDrivers
from gpuagent.domain.policy import Policy
from gpuagent.domain.sharing.gpu_share import GpuShare
from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.sharing.isolation_layers import AUTO, LIMITS, LIMITS_AND_MPS, MPS, NONE, Layer, chosen
from gpuagent.domain.sharing.mode import GPU_MEM, Isolates, Kind, Mode
from gpuagent.domain.state import State
from gpuagent.isolation.interface import Starting
from gpuagent.isolation.mps.share import MEMORY_VARIABLE, THREADS_VARIABLE
from gpuagent.isolation.paired import with_pair
from tests.unit.domain.builders import gpu

MEMORY = frozenset({Isolates.MEMORY})
BOTH = frozenset({Isolates.MEMORY, Isolates.COMPUTE})
WORKING = {
    "cgpu": Layer(driver="cgpu", installed=False, isolates=MEMORY, modes=frozenset({Mode.CGPU, Mode.CORE_MEM})),
    LIMITS: Layer(driver=LIMITS, installed=True, isolates=MEMORY, modes=frozenset({Mode.CGPU}), limits_pods=True),
    MPS: Layer(
        driver=MPS,
        installed=True,
        isolates=BOTH,
        modes=frozenset({Mode.CGPU, Mode.MPS, Mode.CORE_MEM}),
        max_sharers=48,
        caveats=("per process", "no reserve"),
        memory_caveats=("per process",),
    ),
}


@pytest.mark.parametrize(
    ("mode", "driver"),
    [(Mode.CGPU, LIMITS), (Mode.CORE_MEM, LIMITS_AND_MPS), (Mode.MPS, LIMITS_AND_MPS), (Mode.SHARE, NONE)],
)
@pytest.mark.parametrize("setting", [AUTO, LIMITS])
def test_each_mode_has_the_drivers_that_can_keep_it(setting, mode, driver):
    assert chosen(mode, setting, WORKING, {}).driver == driver


def test_a_node_that_cannot_limit_memory_is_left_to_mps():
    layers = {**WORKING, LIMITS: replace(WORKING[LIMITS], installed=False, problem="driver 580")}
    for mode in (Mode.CGPU, Mode.CORE_MEM, Mode.MPS):
        assert chosen(mode, AUTO, layers, {}).driver == MPS


def test_cgpu_comes_first_where_it_is_installed():
    layers = {**WORKING, "cgpu": replace(WORKING["cgpu"], installed=True)}
    assert chosen(Mode.CGPU, AUTO, layers, {}).driver == "cgpu"


def test_running_containers_keep_their_drivers():
    bound = {Mode.CORE_MEM: LIMITS_AND_MPS, Mode.CGPU: MPS}
    layers = {**WORKING, LIMITS: replace(WORKING[LIMITS], installed=False)}
    assert chosen(Mode.CORE_MEM, AUTO, layers, bound).driver == LIMITS_AND_MPS
    assert chosen(Mode.CGPU, AUTO, WORKING, bound).driver == MPS


@pytest.mark.parametrize("broken", [LIMITS, MPS])
def test_two_drivers_work_only_together(broken):
    layers = {**WORKING, broken: replace(WORKING[broken], problem=f"{broken} is down")}
    layer = chosen(Mode.CORE_MEM, AUTO, layers, {})
    assert layer.driver == LIMITS_AND_MPS
    assert not layer.keeps(Mode.CORE_MEM)
    assert layer.problem == f"{broken} is down"


def test_what_two_drivers_report_is_joined():
    layers = {
        LIMITS: replace(WORKING[LIMITS], left_out={"GPU-a": "MIG"}, caveats=("managed memory",)),
        MPS: replace(WORKING[MPS], left_out={"GPU-b": "too old"}),
    }
    layer = chosen(Mode.CORE_MEM, AUTO, layers, {})
    assert layer.left_out == {"GPU-a": "MIG", "GPU-b": "too old"}
    assert layer.max_sharers == 48
    assert layer.caveats == ("managed memory", "no reserve")
    assert layer.limits_pods


class Recorder:
    """A driver that says what it is asked for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.verified: list[Starting] = []

    def start(self, report) -> None: ...
    def desire(self, need) -> None: ...
    def stop(self) -> None: ...

    def prepare(self, grant: Grant) -> Grant:
        if self.name == MPS:
            return replace(grant, env={**grant.env, MEMORY_VARIABLE: "0=4096M", THREADS_VARIABLE: "30"})
        return grant

    def verify(self, grant: Grant, starting: Starting) -> None:
        self.verified.append(starting)


def test_containers_get_compute_of_mps_and_no_cap_for_memory():
    drivers = {LIMITS: Recorder(LIMITS), MPS: Recorder(MPS)}
    pair = with_pair(drivers)[LIMITS_AND_MPS]
    grant = Grant(resource=GPU_MEM, kind=Kind.MEMORY_CORE_MEM, gpus=(gpu(0),), units=4, env={})
    assert pair.prepare(grant).env == {THREADS_VARIABLE: "30"}
    starting = Starting()
    pair.verify(grant, starting)
    assert drivers[LIMITS].verified == [starting]
    # MPS does not limit the memory, also not of all programs together.
    all_memory = {gpu(0).uuid: GpuShare(gpu(0).memory_mib, 100)}
    assert drivers[MPS].verified == [replace(starting, shares=all_memory)]


def test_claims_do_without_a_partner_that_the_node_lacks():
    layers = {LIMITS: WORKING[LIMITS], MPS: Layer(driver=MPS, installed=False, problem="not found")}
    state = State(policy=Policy(isolation=LIMITS), isolation=IsolationDrivers(layers=layers))
    assert layer_mode(state) is Mode.CGPU
    assert layer_mode(replace(state, isolation=IsolationDrivers(layers=WORKING))) is Mode.CORE_MEM
