"""What status shows: cGPU, MPS, nothing; and what is wrong."""

import pytest

from tests.unit.installer.fakehost import CONTAINER

NAME = CONTAINER[:12]


def test_a_bare_node(run):
    result = run("status")
    assert result.code == 0
    assert result.out.splitlines()[0].startswith("layer none   version -   driver 550.90.07   kernel 5.10")
    page = run("status", "-o", "json").json
    assert (page["layer"], page["version"], page["problem"], page["gpus"], page["mps"]) == (
        "none",
        None,
        None,
        [],
        None,
    )


def test_a_node_with_cgpu(installed, run):
    installed.instance(gpu=1)
    page = run("status", "-o", "json").json
    assert (page["layer"], page["version"], page["problem"], page["errors"]) == ("cgpu", "1.5.10", None, [])
    assert page["installed"]["version"] == "1.5.10"
    assert page["installed"]["changed_since"] == []
    gpu = page["gpus"][1]
    assert (gpu["index"], gpu["model"], gpu["policy"], gpu["policy_name"]) == (1, "Tesla T4", 5, "native")
    (instance,) = gpu["instances"]
    assert (instance["name"], instance["memsize_bytes"], instance["used_bytes"]) == (NAME, 4 * 2**30, 2**30)
    assert (instance["weight"], instance["pids"]) == (4, [41, 42])
    table = run("status").out.splitlines()
    assert table[-1].split() == [
        "1",
        "Tesla",
        "T4",
        "5",
        "native",
        "20",
        NAME,
        "4096",
        "MiB",
        "1024",
        "MiB",
        "4",
        "41",
        "42",
    ]


def test_what_cannot_be_read_is_reported(installed, run):
    installed.write("proc/cgpu_km/0/policy", "?\n")
    page = run("status", "-o", "json").json
    assert page["gpus"][0]["policy"] is None
    assert "policy: '?' is not a number" in page["errors"][0]
    assert "! " in run("status").out


def test_a_bad_version_is_a_problem_and_a_doubtful_one_a_caveat(installed, run):
    installed.write("proc/cgpu_km/version", "1.5.2\n")
    assert "known to be bad" in run("status", "-o", "json").json["problem"]
    installed.write("proc/cgpu_km/version", "1.5.8\n")
    page = run("status", "-o", "json").json
    assert page["problem"] is None
    assert "prefer the later one" in page["caveats"][0]


def test_installed_but_not_loaded(installed, run):
    installed.reboot()
    page = run("status", "-o", "json").json
    assert page["layer"] == "none"
    assert "cGPU is not loaded" in page["problem"]


def test_a_node_with_mps(host, run):
    host.write("compute-apps", "4200, GPU-0, 512\n4201, GPU-1, [N/A]\ngarbage\n")
    page = run("status", "--mps-pipe-dir", "/run/mps", "-o", "json").json
    assert page["layer"] == "mps"
    assert page["mps"] == {
        "servers": [4100],
        "clients": [
            {"pid": 4200, "server": 4100, "gpu_uuid": "GPU-0", "used_bytes": 2**29},
            {"pid": 4201, "server": 4100, "gpu_uuid": "GPU-1", "used_bytes": None},
        ],
        "thread_percentage": "50.0",
        "memory_limits": [[0, "8G"]],
    }
    text = run("status", "--mps-pipe-dir", "/run/mps").out
    assert "MPS servers 4100   threads 50.0 %   default memory limit GPU 0: 8G" in text
    assert "4100    4200    GPU-0  512 MiB" in text


def test_a_node_with_a_daemon_for_each_gpu(host, run):
    host.write("compute-apps", "4200, GPU-0, 512\n")
    for place in ("run/gpus/a/control", "run/gpus/b/control", "run/gpus/no-daemon/file"):
        host.write(place, "")
    page = run("status", "--mps-pipe-dir", "/run/gpus", "-o", "json").json
    assert page["mps"] == {
        "servers": [4300],
        "clients": [{"pid": 4200, "server": 4300, "gpu_uuid": "GPU-0", "used_bytes": 2**29}],
        "thread_percentage": "100.0",
        "memory_limits": [],
    }


def test_a_daemon_behind_another_pipe_is_not_seen(run):
    assert run("status", "--mps-pipe-dir", "/run/other", "-o", "json").json["mps"] is None


def test_state_of_ours_that_cannot_be_read_is_reported(installed, run):
    installed.write("var/lib/gpu-isolation/installed.json", "{")
    page = run("status", "-o", "json").json
    assert "installed.json" in page["errors"][0]
    assert page["layer"] == "cgpu"
    result = run("uninstall")
    assert result.code == 1
    assert "move it away; the layer then counts as another program's" in result.err


WHOLE = '"what": "x", "undoing": null, "failed": "", "boot": ""'


@pytest.mark.parametrize(
    "text",
    [
        '{"what": "x"}',
        "[]",
        f'{{{WHOLE}, "begun": -1, "steps": []}}',
        f'{{{WHOLE}, "begun": 0, "steps": ["q"]}}',
        f'{{{WHOLE}, "begun": "1", "steps": []}}',
    ],
)
def test_a_journal_that_cannot_be_read_stops_every_change(installed, run, text):
    installed.write("var/lib/gpu-isolation/journal.json", text)
    before = installed.tree()
    result = run("uninstall")
    assert result.code == 1
    assert "Another version of this program wrote it" in result.err
    assert installed.tree() == before
