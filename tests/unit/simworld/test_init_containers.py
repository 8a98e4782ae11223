"""Pods with init containers and sidecars in simulated worlds."""

import pytest

from simworld.claim_scenario import draw_small_world
from simworld.draw_init import FIRST_WITH_SIDECARS
from simworld.history import INIT, MEMORY, SIDECAR
from simworld.parts.amounts import lasting_containers, limits
from simworld.scenario import LATER_SEEDS


def container(name, units, **more):
    return {"name": name, "resources": {"limits": {MEMORY: str(units), "cpu": "1"}}, **more}


def pod(*containers, init=()):
    return {"spec": {"containers": list(containers), "initContainers": list(init)}}


SIDE = container(f"{SIDECAR}-0", 3, restartPolicy="Always")


@pytest.mark.parametrize(
    ("init", "units"),
    [
        ([], 10),
        ([container(f"{INIT}-0", 8)], 10),
        ([container(f"{INIT}-0", 12)], 12),
        ([SIDE], 13),
        # It ends before the sidecar starts, or runs beside it.
        ([container(f"{INIT}-0", 12), SIDE], 13),
        ([SIDE, container(f"{INIT}-0", 12)], 15),
    ],
)
def test_a_pod_asks_for_what_it_has_at_one_time(init, units):
    asked = pod(container("main-0", 8), container("main-1", 2), init=init)
    assert limits(asked) == {MEMORY: units}


def test_sidecars_live_as_long_as_their_pod():
    asked = pod(container("main-0", 8), init=[container(f"{INIT}-0", 8), SIDE])
    assert [found["name"] for found in lasting_containers(asked)] == [f"{SIDECAR}-0", "main-0"]


def init_pods(seed):
    return [action.args for action in draw_small_world(seed).actions if action.kind == "create_init_pod"]


def test_only_later_seeds_have_init_containers():
    assert not any(init_pods(seed) for seed in range(1, 100))
    worlds = [seed for seed in range(LATER_SEEDS, LATER_SEEDS + 60) if init_pods(seed)]
    assert len(worlds) > 10
    sidecars = [seed for seed in worlds if any(args[4] for args in init_pods(seed))]
    for seed in sidecars:
        assert all(int(version.split(".")[1]) >= FIRST_WITH_SIDECARS for version in draw_small_world(seed).nodes)
    assert sidecars
