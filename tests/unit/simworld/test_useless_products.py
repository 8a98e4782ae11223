"""Products that give nothing and have a reason for each pod: the checker must not take the reason for an excuse."""

import pytest

from tests.unit.simworld.own_process import output_of

PLAY = """
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from simworld.runtime.replace import replace_machine
replace_machine()
from gpuagent.allocator.allocator import Allocator
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.state import State
from gpuscheduler.core.scheduling import Scheduling
from simworld.parts.gpu_scheduler import GpuScheduler
from simworld.play import play
from simworld.scenario import Action, Scenario

allocate = Allocator.allocate
calls = []

def refuses_all(self, resource, ids):
    raise Refusal(Reason.NOT_ENOUGH, f"{{resource}}: nothing is left")

def refuses_the_second(self, resource, ids):
    calls.append(ids)
    if len(calls) == 2:
        refuses_all(self, resource, ids)
    return allocate(self, resource, ids)

class TakesAllForUnhealthy(dict):
    def __init__(self, state):
        super().__init__((gpu.uuid, "") for gpu in state.gpus.by_index)

filtered = Scheduling.filter

def names_no_node(self, *call):
    return replace(filtered(self, *call), nodes=())

kind = {product!r}
if kind == "refuses_all":
    Allocator.allocate = refuses_all
elif kind == "refuses_the_second":
    Allocator.allocate = refuses_the_second
elif kind == "takes_all_for_unhealthy":
    State.unhealthy = property(TakesAllForUnhealthy)
elif kind == "names_no_node":
    Scheduling.filter = names_no_node
elif kind == "never_answers":
    GpuScheduler._synced = lambda self: None
cores = 30 * ({mode!r} == "core_mem")
resource = "aliyun.com/gpu" if {mode!r} == "topology" else "aliyun.com/gpu-mem"
actions = tuple(Action(5.0 + at, "create_job_pod", (resource, 1, cores, 3.0)) for at in range(3))
scenario = Scenario(1, ("1.36",), 2, {mode!r}, {decides}, 12.0, actions)
with TemporaryDirectory() as folder:
    outcome = play(scenario, Path(folder))
print(*outcome.broken, sep="\\n")
"""


@pytest.mark.parametrize(
    ("product", "mode", "decides", "broken"),
    [
        ("", "core_mem", True, ""),
        ("", "topology", False, ""),
        ("refuses_all", "core_mem", True, "pod-1 is refused, and node-1 has room for it"),
        ("refuses_all", "topology", False, "pod-1 is refused, and node-1 has room for it"),
        ("refuses_the_second", "share", True, "is refused, and node-1 has room for it"),
        ("takes_all_for_unhealthy", "core_mem", False, "for unhealthy, which is not"),
        ("names_no_node", "topology", True, "gpuscheduler has no place for"),
        ("never_answers", "share", True, "gpuscheduler answers nothing"),
    ],
)
def test_a_product_that_gives_nothing_breaks_a_promise(product, mode, decides, broken):
    told = output_of(PLAY.format(mode=mode, product=product, decides=decides))
    assert broken in told
    assert bool(told.strip()) is bool(product)
