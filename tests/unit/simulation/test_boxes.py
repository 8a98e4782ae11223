"""The shipped boxes are sane; a wrong file is refused in words that help."""

import re
from pathlib import Path

import pytest

from gpuagent.nvml.gpu_reader import discover
from gpuagent.simulation import boxes
from gpuagent.simulation.boxes import BoxError

GOOD = """
[[gpus]]
model = "NVIDIA A10"
memory_mib = 23028
compute_capability = "8.6"
pci_bus_ids = ["00000000:17:00.0", "00000000:31:00.0"]
"""


def test_the_known_ones_are_there():
    assert set(boxes.names()) == {
        "dgx1-p100", "dgx1-v100", "dgx1-v100-32gb", "dgx2", "dgx-a100", "dgx-a100-mig", "hgx-h100", "hgx-h200",
        "hgx-b200", "gb200-tray", "pcie-4x-a10", "pcie-4x-a40-nvlink", "pcie-8x-l40s", "t4", "mixed", "gb10",
        "limits-misc", "limits-dmem",
    }  # fmt: skip


@pytest.mark.parametrize("name", boxes.names())
def test_every_box_is_sane_and_reads_as_it_is_written(name, simulate, tmp_path):
    box = boxes.load(name)
    assert box == boxes.load(boxes.FOLDER / f"{name}.toml")
    assert 1 <= len(box.gpus) <= 16
    assert box.description
    assert len({gpu.uuid for gpu in box.gpus}) == len(box.gpus), "UUIDs differ"
    simulate(box)
    seen = discover(sysfs=tmp_path, dev=tmp_path)
    assert not seen.unreadable
    assert seen.driver_version == box.driver_version
    for gpu, spec in zip(seen.gpus, box.gpus, strict=True):
        assert (gpu.uuid, gpu.minor, gpu.pci_bus_id) == (spec.uuid, spec.minor, spec.pci_bus_id)
        memory_mib = spec.memory_mib if spec.memory_reported else 0
        assert (gpu.model, gpu.memory_mib, gpu.reserved_mib) == (spec.model, memory_mib, spec.reserved_mib)
        assert gpu.compute_capability == spec.compute_capability
        assert gpu.mig is bool(spec.mig)
        assert gpu.numa_node == (None if "nvmlDeviceGetNumaNodeId" in box.missing else spec.numa_node)
        assert 0 <= gpu.reserved_mib < spec.memory_mib / 20


def test_which_boxes_limit_memory():
    limited = {}
    for name in boxes.names():
        box = boxes.load(name)
        if box.has_memory_limits:
            limited[name] = box.memory_limits
    assert limited == {"limits-misc": "misc", "limits-dmem": "dmem"}
    text = f'driver_version = "615"\nmemory_limits = "none"\n{GOOD}'
    assert boxes.parse("mine", text).memory_limits == "none"


def test_the_published_sizes():
    sizes = {name: [gpu.memory_mib for gpu in boxes.load(name).gpus] for name in boxes.names()}
    assert sizes["dgx-a100"] == [81920] * 8
    assert sizes["hgx-h200"] == [143771] * 8
    assert sizes["dgx2"] == [32768] * 16
    assert sizes["t4"] == [15360]
    assert sizes["mixed"] == [15360, 15360, 23028, 23028, 40960]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has 0 GPUs; a box has 1 to 16"),
        ("colour = 3" + GOOD, "unknown key 'colour'"),
        (GOOD + "colour = 3", "[[gpus]] number 1: unknown key 'colour'"),
        (GOOD.replace("[[gpus]]", "[[gpus"), "not TOML"),
        (GOOD.replace("23028", '"many"'), "memory_mib must be int, not 'many'"),
        (GOOD.replace("23028", "true"), "memory_mib must be int, not True"),
        (GOOD.replace("memory_mib = 23028", ""), "memory_mib is missing"),
        (GOOD.replace("23028", "0"), "memory_mib 0 must be above"),
        (GOOD.replace('"8.6"', '"new"'), "compute_capability must be like"),
        (GOOD.replace("31:00.0", "zz"), "pci_bus_ids: '00000000:zz' is not like"),
        (GOOD.replace("31:00.0", "17:00.0"), "more than one GPU has pci_bus_id 00000000:17:00.0"),
        (GOOD + "minors = [4, 4]", "more than one GPU has minor 4"),
        (GOOD + "numa_nodes = [0]", "numa_nodes has 1 entries, pci_bus_ids 2"),
        (GOOD + f"uuids = ['{boxes.uuid_of('x', 0)}', '{boxes.uuid_of('x', 0)}']", "more than one GPU has uuid GPU-"),
        (GOOD + "uuids = ['a', 'b']", "uuids: 'a' is not like"),
        ('memory_limits = "v1"' + GOOD, "memory_limits 'v1' is not one of dmem, misc, none"),
        ("gpus = [1]", "[[gpus]] number 1: must be a table"),
        (GOOD.replace("[", "[", 1) + "".join(
            GOOD.replace(":17", f":{bus:02X}").replace(":31", f":{bus + 1:02X}") for bus in range(0x40, 0x50, 2)
        ), "has 18 GPUs; a box has 1 to 16"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused(text, words, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(BoxError, match=re.escape(words)) as err:
        boxes.load(path)
    assert str(path) in str(err.value)


def test_an_unknown_box_lists_the_known_ones():
    with pytest.raises(BoxError, match="unknown box 'dgx9'; known boxes: dgx-a100, .*mixed.*or give the path"):
        boxes.load("dgx9")
    with pytest.raises(BoxError, match="no box file /nowhere/x.toml; known boxes"):
        boxes.load("/nowhere/x.toml")


def test_unreadable_files(tmp_path: Path):
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "a.toml", f"{tmp_path}/"):
        with pytest.raises(BoxError, match="cannot be read"):
            boxes.load(path)
