"""``python tests/e2e/apart.py COMMAND``: run a command as if on a machine of its own.

It has a network that leads nowhere and knows no names, the processes, and the folders that kubelet uses for itself,
as copies where it may change them. So a kubelet of the machine's is left alone, several clusters run beside each
other, and whatever the command leaves ends with it. It needs root. Only the standard library is used: it also starts
the processes among which the tests are shared out.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_INSIDE = "--inside"
_NAMESPACES = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "--ipc")
_KUBELET = Path("/var/lib/kubelet")
_OWN = Path("/mnt")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "kmsg")
# Where every resolver asks. No server is there, so no name takes longer than the answer that nobody listens. Of a
# machine's server no answer comes at all: kubelet looks up its node's name for each report, and would wait 10 s.
_NAME_SERVER = "nameserver 127.0.0.1\n"
_RESOLVER = Path("/etc/resolv.conf")
_DEVICE_LINKS = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
# Addresses for examples, which nobody has: what is sent there gets no further than the other end of the pair.
_NETWORK = (
    "link set lo up",
    "link add eth0 type veth peer name eth0-peer",
    "link set eth0-peer up",
    "link set eth0 up",
    "address add 192.0.2.1/24 dev eth0",
    "route add default via 192.0.2.2",
)


def main(command: Sequence[str]) -> int:
    if command[0] != _INSIDE:
        os.execvp("unshare", ("unshare", *_NAMESPACES, sys.executable, __file__, _INSIDE, *command))
    _own_network()
    _leave_mounts_of_others()
    _own_folders()
    _own_name_server()
    _own_devices()
    return _run(command[1:])


def _own_network() -> None:
    """A loopback interface, and one with an address and a route, from which kubelet takes the node's address."""
    for command in _NETWORK:
        subprocess.run(("ip", *command.split()), check=True)


def _leave_mounts_of_others() -> None:
    """What the volumes of a running cluster have mounted came along, and would hide below the new folders."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in sorted(points, key=len, reverse=True):
        if Path(point).is_relative_to(_KUBELET) or Path(point).is_relative_to("/run"):
            subprocess.run(("umount", "--lazy", point), check=False, capture_output=True)


def _own_folders() -> None:
    _mount("-t", "tmpfs", "own", str(_OWN))
    changed = _OWN / "changed"
    work = _OWN / "work"
    for folder in (changed / _KUBELET.name, work):
        folder.mkdir(parents=True)
    # Nothing of a folder that the machine has, or that another run makes there later, shows through.
    os.setxattr(changed / _KUBELET.name, "trusted.overlay.opaque", b"y")
    options = f"lowerdir={_KUBELET.parent},upperdir={changed},workdir={work}"
    _mount("-t", "overlay", "own", "-o", options, str(_KUBELET.parent))
    for emptied in ("/run", "/var/log"):
        _mount("-t", "tmpfs", "own", emptied)


def _own_name_server() -> None:
    if not _RESOLVER.exists():  # or it was a link into /run: then resolvers ask there by themselves
        return
    settings = _OWN / "resolv.conf"
    settings.write_text(_NAME_SERVER)
    settings.chmod(0o644)
    _mount("--bind", str(settings), str(_RESOLVER))


def _own_devices() -> None:
    """Tests make the driver's device nodes."""
    devices = _OWN / "devices"
    devices.mkdir()
    _mount("-t", "tmpfs", "own", str(devices))
    for name in _DEVICES:
        node = Path("/dev", name).stat()
        os.mknod(devices / name, node.st_mode, node.st_rdev)
        (devices / name).chmod(node.st_mode & 0o777)
    for name in ("pts", "shm", "mqueue"):
        (devices / name).mkdir()
    _mount("--bind", "/dev/pts", str(devices / "pts"))
    _mount("-t", "tmpfs", "own", str(devices / "shm"))
    _mount("-t", "mqueue", "own", str(devices / "mqueue"))
    for name, target in _DEVICE_LINKS.items():
        (devices / name).symlink_to(target)
    _mount("--move", str(devices), "/dev")


def _mount(*arguments: str) -> None:
    subprocess.run(("mount", *arguments), check=True)


def _run(command: Sequence[str]) -> int:
    """As the first process of its namespace, this one inherits what has lost its parent, and waits for it."""
    child = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: child.send_signal(number))
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            return os.waitstatus_to_exitcode(status) & 0xFF


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
