"""The socket at which real processes allocate simulated memory."""

import array
import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from gpuagent.simulation.devices import device_client, device_socket
from standin.waiting import PATIENCE_S
from tests.descriptors import descriptors_below

MIB = 1 << 20
LEAF = "kubepods/pod1/a"
NEIGHBOR = "kubepods/pod2/a"


class Process:
    """A connection of this process, or of one that inherited it."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(str(path))
        self._lines = self.socket.makefile("rb")

    def ask(self, **request):
        self.send(json.dumps(request).encode() + b"\n")
        return self.answer()

    def send(self, data):
        self.socket.sendall(data)

    def answer(self):
        line = self._lines.readline()
        return json.loads(line) if line else None

    def close(self):
        self._lines.close()
        self.socket.close()


class Device:
    """A simulated driver with its socket, in which this process is in a cgroup."""

    def __init__(self, simulator, cgroups, path):
        self.simulator = simulator
        self.cgroups = cgroups
        self.path = path
        for cgroup in (LEAF, NEIGHBOR):
            cgroups.make(cgroup)
        cgroups.process(os.getpid(), LEAF)
        simulator.listen_for_processes(path)
        self.processes = []

    def connect(self):
        self.processes.append(Process(self.path))
        return self.processes[-1]

    def limit(self, path, mib):
        with self.simulator.changed:
            memory = self.simulator.device_memory
            memory.accounting.set_limits(memory.gpus[0], memory.folders.at(self.cgroups.root / path), 0, mib * MIB)

    def used(self, path=None):
        """MiB that count against the limit of that cgroup, or all of GPU 0."""
        with self.simulator.changed:
            memory = self.simulator.device_memory
            if path is None:
                return memory.used(memory.gpus[0]) // MIB
            return memory.accounting.limits(memory.gpus[0], memory.folders.at(self.cgroups.root / path)).used // MIB

    def wait_used(self, mib):
        until = time.monotonic() + PATIENCE_S
        while self.used() != mib:
            assert time.monotonic() < until, self.used()
            threading.Event().wait(0.002)


@pytest.fixture
def device(simulate_limits, cgroups, tmp_path):
    made = []

    def make(backend="misc"):
        made.append(Device(simulate_limits(backend), cgroups, tmp_path / "device"))
        return made[-1]

    yield make
    for device in made:
        for process in device.processes:
            process.close()


def test_a_process_allocates_and_is_limited(device):
    device = device()
    device.limit(LEAF, 300)
    process = device.connect()
    answer = process.ask(alloc=200 * MIB)
    assert answer == {"ok": True, "allocation": 1, "total": 300 * MIB, "used": 200 * MIB, "free": 100 * MIB}
    assert process.ask(alloc=101 * MIB) == {"ok": False, "error": "OUT_OF_MEMORY"}
    assert process.ask(managed=101 * MIB)["ok"]
    assert process.ask(info=True) == {"ok": True, "total": 300 * MIB, "used": 200 * MIB, "free": 100 * MIB}
    assert device.used(LEAF) == 200
    process.close()
    device.wait_used(0)


def test_a_gpu_by_uuid_and_index(device):
    device = device()
    device.limit(LEAF, 300)
    process = device.connect()
    for gpu in (1, device.simulator.box.gpus[1].uuid):
        answer = process.ask(gpu=gpu, alloc=MIB)
        assert answer["total"] == 22516 * MIB
    assert device.used() == 0
    assert process.ask(gpu="GPU-none", info=True)["error"] == "BAD_REQUEST"


def test_a_process_that_only_asks_keeps_the_gpu_running(device):
    device = device("dmem")
    device.simulator.persistence(0, False)
    process = device.connect()
    assert process.ask(info=True)["ok"]
    device.limit(LEAF, 300)
    other = device.connect()
    other.ask(alloc=MIB)
    other.close()
    device.wait_used(0)
    assert process.ask(info=True)["total"] == 300 * MIB


def test_memory_is_freed_newest_first(device):
    device = device()
    process = device.connect()
    for mib in (1, 2, 4, 8):
        process.ask(alloc=mib * MIB)
    process.ask(gpu=1, alloc=MIB)
    assert process.ask(free=9 * MIB)["ok"]
    assert device.used() == 3
    assert process.ask(free=1 << 60)["ok"]
    assert device.used() == 0
    assert process.ask(free=1)["ok"]


def test_imported_memory_outlives_its_exporter(device):
    device = device()
    device.limit(LEAF, 300)
    exporter, importer = device.connect(), device.connect()
    number = exporter.ask(alloc=200 * MIB)["allocation"]
    assert importer.ask(**{"import": number})["ok"]
    exporter.close()
    assert importer.ask(info=True)["used"] == 200 * MIB
    importer.close()
    device.wait_used(0)
    assert device.connect().ask(**{"import": number}) == {"ok": False, "error": "NOT_FOUND"}


@pytest.mark.parametrize(("backend", "charged", "other"), [("misc", LEAF, NEIGHBOR), ("dmem", NEIGHBOR, LEAF)])
def test_a_child_that_inherits_the_device(backend, charged, other, device):
    device = device(backend)
    for path in (LEAF, NEIGHBOR):
        device.limit(path, 300)
    process = device.connect()
    child = child_that_sends(process.socket)
    device.cgroups.process(child.pid, NEIGHBOR)
    child.communicate(json.dumps({"alloc": 100 * MIB}).encode() + b"\n", timeout=PATIENCE_S)
    assert process.answer()["ok"]
    assert (device.used(charged), device.used(other)) == (100, 0)


def child_that_sends(connection):
    """A process that sends one line of its input to the socket that it inherits."""
    code = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).sendall(sys.stdin.buffer.readline()); sys.stdin.read()"
    number = connection.fileno()
    return subprocess.Popen([sys.executable, "-c", code, str(number)], stdin=subprocess.PIPE, pass_fds=[number])


CREATOR = """
import os, socket, sys
device = socket.socket(socket.AF_UNIX)
device.connect(sys.argv[1])
child = os.fork()
if child:
    print(os.getpid(), child, flush=True)
    sys.stdin.readline()
    os._exit(0)
requests = os.fdopen(int(sys.argv[2]), "rb")
while line := requests.readline():
    device.sendall(line)
    os.write(1, device.recv(4096))
"""


@pytest.mark.parametrize(("backend", "charged"), [("misc", 0), ("dmem", 100)])
def test_a_client_whose_creator_has_ended(backend, charged, device):
    device = device(backend)
    device.limit(LEAF, 300)
    read, write = os.pipe()
    creator = subprocess.Popen(
        [sys.executable, "-c", CREATOR, device.path, str(read)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[read],
    )  # fmt: skip
    os.close(read)
    pids = [int(pid) for pid in creator.stdout.readline().split()]
    for pid in pids:
        device.cgroups.process(pid, LEAF)
    try:
        creator.stdin.write(b"\n")
        creator.stdin.close()
        creator.wait(PATIENCE_S)
        os.write(write, json.dumps({"alloc": 100 * MIB}).encode() + b"\n")
        assert json.loads(creator.stdout.readline())["ok"]
        assert device.used() == 100
        assert device.used(LEAF) == charged
    finally:
        os.close(write)
        creator.stdout.close()
    device.wait_used(0)


def test_a_process_of_no_known_cgroup(device):
    device = device()
    device.cgroups.process(os.getpid(), "elsewhere")
    answer = device.connect().ask(alloc=1)
    assert answer["error"] == "UNKNOWN_CGROUP"
    assert answer["message"].startswith(f"process {os.getpid()} is in cgroup '/elsewhere', which is not below")


def test_the_driver_goes_and_comes(device):
    device = device()
    process = device.connect()
    process.ask(alloc=100 * MIB)
    device.simulator.driver(False)
    assert device.used() == 0
    assert process.ask(alloc=1) == {"ok": False, "error": "NOT_SUPPORTED"}
    device.simulator.driver(True)
    device.simulator.limits("dmem")
    assert process.ask(alloc=MIB)["used"] == MIB
    assert process.ask(free=MIB)["used"] == 0


# -- whatever processes send ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"alloc",
        b"\xff\x00",
        b"[]",
        b"[" * 2000,
        b"{}",
        b'{"gpu": 0}',
        b'{"alloc": 1, "free": 1}',
        b'{"alloc": 0}',
        b'{"alloc": -1}',
        b'{"alloc": true}',
        b'{"alloc": 1.5}',
        b'{"alloc": "1"}',
        b'{"alloc": 1e999}',
        b'{"alloc": NaN}',
        b'{"alloc": 4611686018427387905}',
        b'{"alloc": ' + b"9" * 4000 + b"}",
        b'{"info": 1}',
        b'{"melt": 1}',
        b'{"gpu": [], "info": true}',
        b'{"gpu": true, "info": true}',
        b'{"gpu": -1, "info": true}',
        b'{"gpu": "\\ud800", "info": true}',
    ],
)
def test_a_bad_line_is_answered_and_harms_nobody(line, device):
    process = device().connect()
    process.send(line + b"\n")
    answer = process.answer()
    assert (answer["ok"], answer["error"]) == (False, "BAD_REQUEST")
    assert len(json.dumps(answer)) < 1000
    assert process.ask(info=True)["ok"]


def test_a_line_without_an_end_is_not_kept(device):
    device = device()
    process = device.connect()
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        while True:
            process.send(b"x" * 1000)
    assert device.connect().ask(info=True)["ok"]


def test_a_process_that_does_not_read_is_dropped(device):
    device = device()
    process = device.connect()
    assert process.ask(alloc=MIB)["ok"]
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        while True:
            process.send(b"\n" * 1000)
    device.wait_used(0)


def test_lines_in_pieces_and_many_at_once(device):
    process = device().connect()
    for byte in b'{"info": true}\n':
        process.send(bytes([byte]))
    assert process.answer()["ok"]
    process.send(b'{"info": true}\n' * 50)
    assert all(process.answer()["ok"] for _ in range(50))


def test_no_file_is_taken_from_a_process(device, tmp_path):
    process = device().connect()
    path = tmp_path / "sent"
    with path.open("w") as sent:
        files = array.array("i", [sent.fileno()] * 16)
        for _ in range(20):
            process.socket.sendmsg([b'{"info": true}\n'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
            assert process.answer()["ok"]
        assert descriptors_below(path) == [str(path)]


def test_connections_and_allocations_are_bounded(device, monkeypatch):
    monkeypatch.setattr(device_socket, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(device_client, "MOST_ALLOCATIONS", 4)
    device = device()
    served = [device.connect() for _ in range(3)]
    assert all(process.ask(info=True)["ok"] for process in served)
    refused = device.connect()
    assert refused.answer() is None
    for _ in range(4):
        assert served[0].ask(alloc=1)["ok"]
    assert served[0].ask(alloc=1) == {"ok": False, "error": "OUT_OF_MEMORY"}
    served[1].close()
    until = time.monotonic() + PATIENCE_S
    answer = None
    while answer is None:
        assert time.monotonic() < until
        process = device.connect()
        try:
            answer = process.ask(info=True)
        except OSError:
            answer = None


def test_a_closed_simulator_ends_its_connections(device, simulate, make_box):
    device = device()
    process = device.connect()
    process.ask(alloc=MIB)
    with pytest.raises(OSError, match="another process listens"):
        simulate(make_box(1)).listen_for_processes(device.path)
    device.simulator.close()
    assert process.answer() is None
    assert not device.path.exists()
    simulate(make_box(1)).listen_for_processes(device.path)
    assert device.connect().ask(info=True) == {"ok": False, "error": "NOT_SUPPORTED"}
