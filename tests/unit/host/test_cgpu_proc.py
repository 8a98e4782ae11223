"""cGPU's place in /proc, whole, old, new, garbled and gone."""

import os
import shutil
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.host import cgpu_proc
from gpuagent.host.cgpu_proc import CgpuGpu, CgpuState, Instance, Version


def write(proc, files):
    for name, text in files.items():
        path = proc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


# 0.8.8: no free_weight below some builds, a policy of two values, instances by 12 characters.
LAYOUT_08 = {
    "version": "0.8.8\n",
    "major": "509\n",
    "default_memsize": "1073741824\n",
    "inst_ctl": "",
    "0/policy": "0\n",
    "0/max_inst": "16\n",
    "0/free_weight": "16\n",
    "0/0123456789ab/id": "3\n",
    "0/0123456789ab/memsize": "4294967296\n",
    "0/0123456789ab/weight": "1\n",
    "0/0123456789ab/meminfo": "Free: 3221225472\nPID: 41 Mem: 536870912\nPID: 42 Mem: 536870912\n",
}
# 1.5: more files at the top and perhaps more folders; ten GPUs sort by number.
LAYOUT_15 = {
    "version": "1.5.10\n",
    "prio_ratio": "50\n",
    "something_new": "x",
    "settings/deep": "x",
    **{f"{gpu}/{name}": "5\n" for gpu in (0, 2, 10) for name in ("policy", "max_inst")},
    "2/stats/total": "x",
}


def test_the_layout_of_0_8_is_read(tmp_path):
    write(tmp_path, LAYOUT_08)
    assert cgpu_proc.read(tmp_path) == CgpuState(
        version=Version(0, 8, 8),
        version_text="0.8.8",
        major=509,
        default_memsize_bytes=2**30,
        gpus=(
            CgpuGpu(
                index=0,
                policy=0,
                max_inst=16,
                free_weight=16,
                instances=(
                    Instance(
                        name="0123456789ab",
                        number=3,
                        memsize_bytes=4 * 2**30,
                        used_bytes=2**30,
                        free_bytes=3 * 2**30,
                        weight=1,
                        pids=(41, 42),
                    ),
                ),
            ),
        ),
    )


def test_the_layout_of_1_5_is_read_and_what_is_new_in_it_is_passed_over(tmp_path):
    write(tmp_path, LAYOUT_15)
    state = cgpu_proc.read(tmp_path)
    assert (state.version, state.prio_ratio, state.unread) == (Version(1, 5, 10), 50, ())
    assert [(gpu.index, gpu.policy, gpu.instances) for gpu in state.gpus] == [(0, 5, ()), (2, 5, ()), (10, 5, ())]


def test_not_loaded_is_none(tmp_path):
    assert cgpu_proc.read(tmp_path / "cgpu_km") is None


def test_an_instance_without_processes_uses_nothing(tmp_path):
    write(tmp_path, {**LAYOUT_08, "0/0123456789ab/meminfo": "Free: 4294967296\n"})
    instance = cgpu_proc.read(tmp_path).gpus[0].instances[0]
    assert (instance.used_bytes, instance.pids) == (0, ())


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("version", "garbage\n", "version: 'garbage' is not a version"),
        ("0/policy", "", "policy: '' is not a number"),
        ("0/policy", "-1\n", "policy: '-1' is not a number"),
        ("0/max_inst", b"\xff\xfe", "is not a number"),
        ("0/0123456789ab/memsize", "4G\n", "memsize: '4G' is not a number"),
        ("0/0123456789ab/meminfo", "Free: x\n", "line 'Free: x' is not understood"),
        ("0/0123456789ab/weight", "9" * 40, "is not a number"),
    ],
)
def test_what_is_garbled_is_none_and_listed(tmp_path, name, text, complaint):
    write(tmp_path, {**LAYOUT_08, name: text})
    state = cgpu_proc.read(tmp_path)
    assert len(state.unread) == 1
    assert complaint in state.unread[0]


@pytest.mark.parametrize("name", ["version", "0/policy", "0/max_inst", "0/0123456789ab/meminfo"])
def test_what_is_missing_is_none_and_listed(tmp_path, name):
    write(tmp_path, {key: text for key, text in LAYOUT_08.items() if key != name})
    assert [text.endswith(f"{name}: missing") for text in cgpu_proc.read(tmp_path).unread] == [True]


def test_a_folder_where_a_file_should_be_is_listed(tmp_path):
    write(tmp_path, {key: text for key, text in LAYOUT_08.items() if key != "version"})
    (tmp_path / "version").mkdir()
    assert "version: Is a directory" in cgpu_proc.read(tmp_path).unread[0]


def test_an_instance_that_ends_while_it_is_read_is_neither_shown_nor_complained_of(tmp_path):
    write(tmp_path, LAYOUT_08)
    folder = tmp_path / "0/0123456789ab"
    memory = folder / "meminfo"
    memory.unlink()
    os.mkfifo(memory)

    def end():
        with memory.open("w"):  # opens once the reader has opened it, which waits for the text
            shutil.rmtree(folder)

    ending = threading.Thread(target=end)
    ending.start()
    state = cgpu_proc.read(tmp_path)
    ending.join()
    assert (state.gpus[0].instances, state.unread) == ((), ())


@given(st.dictionaries(st.sampled_from(sorted(LAYOUT_08)), st.binary(max_size=60)))
def test_no_content_whatever_raises(tmp_path_factory, changed):
    proc = tmp_path_factory.mktemp("cgpu_km")
    write(proc, {**LAYOUT_08, **changed})
    state = cgpu_proc.read(proc)
    cgpu_proc.problem(state)
    assert len(state.gpus) == 1


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("1.5.10", Version(1, 5, 10)),
        (" v0.8.8\n", Version(0, 8, 8)),
        ("1.5.20-rc1", Version(1, 5, 20)),
        ("1.5", None),
        ("1.5.x", None),
        ("", None),
        ("١.٥.١", None),
    ],
)
def test_versions_are_parsed(text, version):
    assert Version.parse(text) == version


def test_versions_compare_by_number():
    assert Version(1, 5, 9) < Version(1, 5, 10) < Version(2, 0, 0)
    assert str(Version(1, 5, 10)) == "1.5.10"


GOOD = CgpuState(version=Version(1, 5, 10), version_text="1.5.10", gpus=(CgpuGpu(index=0),))


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, "cGPU is not loaded (no /proc/cgpu_km)"),
        (CgpuState(), "version is not known (/proc/cgpu_km/version cannot be read)"),
        (CgpuState(version_text="?!"), "says '?!'"),
        (CgpuState(version=Version(1, 5, 7), gpus=GOOD.gpus), "cGPU 1.5.7 is known to be bad"),
        (CgpuState(version=Version(0, 8, 8), gpus=GOOD.gpus), "upgrade the node to 1.5.10 or later"),
        (CgpuState(version=Version(1, 5, 10)), "has no GPU"),
    ],
)
def test_a_layer_that_must_not_be_used_says_why_and_what_to_do(state, expected):
    assert expected in cgpu_proc.problem(state)


def test_a_good_layer_has_no_problem_and_a_doubtful_one_a_caveat():
    assert cgpu_proc.problem(GOOD) is None
    assert cgpu_proc.caveats(Version(1, 5, 10)) == ()
    assert cgpu_proc.known_bad(Version(1, 5, 8)) is None
    assert "the ACK FAQ asks for 1.5.10" in cgpu_proc.caveats(Version(1, 5, 8))[0]


def test_the_policies_are_those_of_the_documents():
    assert {number: policy.name for number, policy in cgpu_proc.POLICIES.items()} == {
        0: "fair-share",
        1: "preemptive",
        2: "weight-based-preemptive",
        3: "fixed",
        4: "soft",
        5: "native",
    }
    assert cgpu_proc.DEFAULT_POLICY == 5
