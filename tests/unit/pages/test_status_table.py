"""The table of the node's state, as a screen shows it."""

import copy
from typing import Any

from gpuagent.pages.status_table import render

MEM, CORE, WHOLE = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu"
POD = "ml/embed-the-documents-7d4b9c6f5-x2x9k[main]"
RESOURCES = {
    name: {"healthy": count, "unhealthy": 0, "stage": "connected", "problem": None}
    for name, count in ((MEM, 80), (CORE, 100), (WHOLE, 0))
}


def gpu(index: int, **given: Any) -> dict[str, Any]:
    bare = {"index": index, "model": "NVIDIA A100-SXM4-80GB", "memory_mib": 81920, "mig": False, "cause": None}
    empty = {"recovering": False, "health": "Healthy", "units": {MEM: 80, CORE: 100}, "held": {}, "containers": []}
    return bare | empty | given


def page(*gpus: dict[str, Any], **given: Any) -> dict[str, Any]:
    bare = {"node": "gpu-1", "mode": "core_mem", "label": {"l": "core_mem"}, "placement": "binpack", "version": "1.0"}
    isolation = {"driver": "mps", "version": "570.1", "caveats": []}
    switch = {"phase": "steady", "waiting_for": []}
    rest = {"isolation": isolation, "memory_unit": "GiB", "switch": switch, "resources": RESOURCES, "problems": []}
    return copy.deepcopy(bare | rest | {"gpus": list(gpus)} | given)


def has(container: str, resource: str, units: int) -> dict[str, Any]:
    return {"container": container, "resource": resource, "units": units}


def test_the_screen_of_a_node_with_pods_fits_80_columns() -> None:
    shares = [has(POD, CORE, 30), has(POD, MEM, 10), has("ml/fast[main]", MEM, 8), has("ml/fast[main]", CORE, 20)]
    held = gpu(0, held={MEM: 18, CORE: 50}, containers=shares)
    ill = gpu(1, health="Unhealthy", cause="XID 79; the driver asks to reboot the node", units={MEM: 80})
    lost = {
        "reason": "GPUUnhealthy",
        "message": "GPU 1 (GPU-1): XID 79; " + "the driver asks for a reboot " * 3,
        "warning": True,
    }
    assert render(page(held, ill, problems=[lost])).splitlines() == [
        "node gpu-1   mode core_mem (label: core_mem)   placement binpack",
        "isolation mps 570.1   unit GiB   gpuagent 1.0",
        "",
        "2 x NVIDIA A100-SXM4-80GB, 80 GiB each",
        "",
        "GPU  HEALTH     HELD",
        "0    Healthy    18/80 GiB, 50/100 %",
        f"     {POD} 10 GiB, 30 %",
        "     ml/fast[main] 8 GiB, 20 %",
        "1    Unhealthy  0/80 GiB",
        "     XID 79; the driver asks to reboot the node",
        "",
        "RESOURCE                        HEALTHY  UNHEALTHY  KUBELET",
        "aliyun.com/gpu-mem              80       0          connected",
        "aliyun.com/gpu-core.percentage  100      0          connected",
        "aliyun.com/gpu                  0        0          connected",
        "",
        "! GPUUnhealthy: GPU 1 (GPU-1): XID 79; the driver asks for a reboot the driver",
        "  asks for a reboot the driver asks for a reboot",
    ]


def test_amounts_have_units_whatever_the_unit_is() -> None:
    switch = {"phase": "waiting", "waiting_for": [has("ml/old[main]", MEM, 6)]}
    old = gpu(0, units={WHOLE: 1}, held={MEM: 6, WHOLE: 0}, containers=[has("ml/old[main]", MEM, 6)])
    text = render(page(old, gpu(1, units={WHOLE: 1}, memory_mib=24564), memory_unit="256MiB", switch=switch))
    assert "mode switch waiting: waits for ml/old[main]" in text
    assert "0    Healthy  0/1 GPU, 1536 MiB of a former mode  NVIDIA A100-SXM4-80GB, 80 GiB" in text
    assert "1    Healthy  0/1 GPU                             NVIDIA A100-SXM4-80GB, 24564 MiB" in text
    assert "     ml/old[main] 1536 MiB\n" in text
    assert "10/20 GiB" in render(page(gpu(0, units={MEM: 80}, held={MEM: 40}), memory_unit="256MiB"))


def test_colors_make_the_unhealthy_gpu_stand_out() -> None:
    text = render(
        page(gpu(0), gpu(1, health="Unhealthy", cause="lost"), gpu(2, recovering=True, cause="lost")), colour=True
    )
    assert "\x1b[31mUnhealthy\x1b[0m" in text
    assert "\x1b[33mrecovering\x1b[0m" in text
    assert "\x1b[31m     lost\x1b[0m" in text
    assert text.count("\x1b[31m") == 2
    assert "\x1b" not in render(page(gpu(0, health="Unhealthy", cause="lost")))
