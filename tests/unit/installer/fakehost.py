"""A fake host root: each file, module and command of the real one has its stand-in here."""

import hashlib
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gpuisolation.files import Files
from gpuisolation.host import Host, Output

KERNEL = "5.10.134-16.al8.x86_64"
HOOK = "usr/bin/nvidia-container-runtime-hook"
TOOLKIT = "usr/bin/nvidia-container-toolkit"
CONTAINER = "3f" * 32
POD = "0d5cf6e8-3b0a-4a4e-9f43-0123456789ab"

# The stand-ins do what the real commands do as far as the installer can see it. $R is the fake root.
# A module is a text: its vermagic, the version it shows in /proc, whether it loads.
COMMANDS = {
    "usr/sbin/depmod": """
        ls $R/lib/modules/$1/kernel/virt/lib | sed 's/[.]ko$//' > $R/lib/modules/$1/index
        """,
    "usr/sbin/modprobe": """
        grep -q "^$1 " $R/proc/modules && exit 0
        grep -qx "$1" $R/lib/modules/KERNEL/index || { echo "modprobe: FATAL: Module $1 not found"; exit 1; }
        ko=$R/lib/modules/KERNEL/kernel/virt/lib/$1.ko
        [ -e $R/dev/nvidiactl ] || { echo "modprobe: no nvidia"; exit 1; }
        grep -q broken $ko && { echo "modprobe: ERROR: could not insert '$1': Invalid argument"; exit 1; }
        echo "$1 16384 0 - Live 0x0" >> $R/proc/modules
        case $1 in
        cgpu_km*)
            for gpu in 0 1; do
                mkdir -p $R/proc/cgpu_km/$gpu
                echo 0 > $R/proc/cgpu_km/$gpu/policy
                echo 20 > $R/proc/cgpu_km/$gpu/max_inst
                echo 100 > $R/proc/cgpu_km/$gpu/free_weight
            done
            sed -n 's/^version=//p' $ko > $R/proc/cgpu_km/version ;;
        esac
        """,
    "usr/sbin/rmmod": """
        case $1 in
        cgpu_procfs) grep -q "^cgpu_km" $R/proc/modules && { echo "rmmod: ERROR: Module cgpu_procfs is in use by: cgpu_km"; exit 1; } ;;
        esac
        [ -e $R/busy ] && { echo "rmmod: ERROR: Module $1 is in use"; exit 1; }
        grep -v "^$1 " $R/proc/modules > $R/proc/modules.new
        mv $R/proc/modules.new $R/proc/modules
        case $1 in cgpu_km*) rm -r $R/proc/cgpu_km ;; esac
        """,
    "usr/bin/nvidia-smi": """
        case "$*" in
        *query-compute-apps*) cat $R/compute-apps 2>/dev/null ;;
        *) touch $R/dev/nvidiactl $R/dev/nvidia0 $R/dev/nvidia1 ;;
        esac
        """,
    "usr/bin/docker": "echo 'Docker version 20.10.24, build 297e128'",
    "usr/bin/containerd": "echo 'containerd github.com/containerd/containerd v1.6.28 ae07eda36dd25f8a1b98dfbf587313b9'",
    "usr/bin/make": """
        printf 'vermagic=KERNEL SMP mod_unload\\nversion=0.8.8\\n' > $R$2/cgpu_km.ko
        """,
    "usr/bin/nvidia-cuda-mps-control": """
        [ "$CUDA_MPS_PIPE_DIRECTORY" = /run/mps ] || { echo "Cannot find MPS control daemon process"; exit 1; }
        read -r question
        case "$question" in
        get_server_list) echo 4100 ;;
        "get_client_list 4100") printf '4200\\n4201\\n' ;;
        get_default_active_thread_percentage) echo 50.0 ;;
        "get_default_device_pinned_mem_limit 0") echo 8G ;;
        esac
        """,
}

FILES = {
    "etc/os-release": 'NAME="Alibaba Cloud Linux"\nID="alinux"\nVERSION_ID="3"\n'
    'PRETTY_NAME="Alibaba Cloud Linux 3 (Soaring Falcon)"\n',
    "proc/sys/kernel/osrelease": f"{KERNEL}\n",
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024\n"
    "GCC version:  gcc version 10.2.1\n",
    "proc/modules": "nvidia_uvm 1540096 0 - Live 0x0\nnvidia 56770560 1 nvidia_uvm, Live 0x0\n",
    "proc/sys/kernel/random/boot_id": "boot-1\n",
    "sys/class/dmi/id/sys_vendor": "Alibaba Cloud\n",
    "sys/class/dmi/id/product_name": "Alibaba Cloud ECS\n",
    "sys/fs/cgroup/devices/tasks": "",
    "var/lib/kubelet/cpu_manager_state": '{"policyName":"none","defaultCpuSet":"","checksum":1353318690}',
    "usr/bin/nvidia-container-toolkit": "#!/bin/sh\n# the toolkit\n",
    "dev/.keep": "",
}


class DirectCommands:
    """Runs the stand-ins of a fake root directly: it has no shell of its own to chroot to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ran: list[str] = []

    def run(self, argv: Sequence[str], stdin: str = "", env: dict[str, str] | None = None) -> Output:
        self.ran.append(" ".join(argv))
        for folder in ("usr/sbin", "usr/bin"):
            path = self.root / folder / argv[0]
            if path.exists():
                done = subprocess.run(
                    ["/bin/sh", path, *argv[1:]],
                    input=stdin,
                    capture_output=True,
                    text=True,
                    env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "R": str(self.root), **(env or {})},
                    check=False,
                )
                return Output(done.returncode, done.stdout + done.stderr)
        return Output(127, f"{argv[0]}: not found")


class Killed(BaseException):
    """Stands for SIGKILL in the same process: nothing that handles errors may handle it."""


class Counter:
    """Counts effects, and lets one of them be the last; with `really`, by SIGKILL."""

    def __init__(self, last: int | None = None, *, after: bool = False, really: bool = False) -> None:
        self.count = 0
        self.last, self.after, self.really = last, after, really

    def around(self, effect):
        self.count += 1
        if self.count == self.last and not self.after:
            self.die()
        result = effect()
        if self.count == self.last and self.after:
            self.die()
        return result

    def die(self) -> None:
        if self.really:
            os.kill(os.getpid(), signal.SIGKILL)
        raise Killed


class CountedFiles(Files):
    """Files whose every primitive is an effect that can be the last."""

    def __init__(self, host: Host, counter: Counter) -> None:
        super().__init__(host)
        self.counter = counter

    def copy(self, source, to, mode):
        # A copy is killed in the middle, too: half a file lies there.
        def half():
            to.write_bytes(source.read_bytes()[: source.stat().st_size // 2])

        if self.counter.count + 1 == self.counter.last and not self.counter.after:
            half()
        self.counter.around(lambda: super(CountedFiles, self).copy(source, to, mode))

    def symlink(self, path, target):
        self.counter.around(lambda: super(CountedFiles, self).symlink(path, target))

    def rename(self, path, to):
        self.counter.around(lambda: super(CountedFiles, self).rename(path, to))

    def unlink(self, path):
        self.counter.around(lambda: super(CountedFiles, self).unlink(path))

    def set_proc(self, path, text):
        self.counter.around(lambda: super(CountedFiles, self).set_proc(path, text))


class CountedCommands(DirectCommands):
    """Commands that are effects too, but those that only tell something."""

    def __init__(self, root: Path, counter: Counter) -> None:
        super().__init__(root)
        self.counter = counter

    def run(self, argv, stdin="", env=None):
        if argv[0] in {"docker", "containerd"}:
            return super().run(argv, stdin, env)
        return self.counter.around(lambda: super(CountedCommands, self).run(argv, stdin, env))


class FakeHost:
    """The fake root, and what a test does to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in FILES.items():
            self.write(name, text)
        for name, script in COMMANDS.items():
            self.write(name, script.replace("KERNEL", KERNEL))
        for minor, bus in enumerate(("0000:00:07.0", "0000:00:08.0")):
            self.write(
                f"proc/driver/nvidia/gpus/{bus}/information",
                f"Model: \t\t Tesla T4\nIRQ:   \t\t 36\nGPU UUID: \t GPU-{minor}\nDevice Minor: \t {minor}\n",
            )
        (root / "lib/modules" / KERNEL).mkdir(parents=True)
        self.link(HOOK, "/usr/bin/nvidia-container-toolkit")

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def link(self, name: str, target: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def new_toolkit(self) -> None:
        """The NVIDIA container toolkit since 1.10: the hook is the program, its other name a link."""
        (self.root / HOOK).unlink()
        self.write(HOOK, "the toolkit's hook").chmod(0o755)
        (self.root / TOOLKIT).unlink()
        self.link(TOOLKIT, "/usr/bin/nvidia-container-runtime-hook")

    def make(self, counter: Counter | None = None):
        """What `cli.run` builds a host with."""

        def build(root: Path) -> tuple[Host, Files]:
            if counter is None:
                host = Host(root, DirectCommands(root))
                return host, Files(host)
            host = Host(root, CountedCommands(root, counter))
            return host, CountedFiles(host, counter)

        return build

    def process(self, pid: int, *, command: str = "python3", cgroup: str = "0::/system.slice/x.service") -> None:
        """A process with a GPU open."""
        self.write(f"proc/{pid}/comm", f"{command}\n")
        self.write(f"proc/{pid}/cgroup", f"{cgroup}\n")
        self.write(f"proc/{pid}/maps", "7f00-7f01 rw-s 00000000 00:05 1234   /dev/nvidia0\n")
        self.link(f"proc/{pid}/fd/3", "/dev/nvidia0")
        self.link(f"proc/{pid}/fd/4", "/dev/null")

    def container(self, pid: int, command: str = "python3") -> None:
        self.process(
            pid,
            command=command,
            cgroup=f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope",
        )

    def end(self, pid: int) -> None:
        subprocess.run(["rm", "-r", str(self.root / "proc" / str(pid))], check=True)

    def instance(self, gpu: int = 0, name: str = CONTAINER[:12], weight: int = 4) -> None:
        folder = f"proc/cgpu_km/{gpu}/{name}"
        self.write(f"{folder}/id", "1\n")
        self.write(f"{folder}/memsize", f"{4 * 2**30}\n")
        self.write(f"{folder}/weight", f"{weight}\n")
        self.write(f"{folder}/meminfo", f"Free: {3 * 2**30}\nPID: 41 Mem: {2**29}\nPID: 42 Mem: {2**29}\n")

    def ends(self, name: str, gpu: int = 0) -> None:
        """The instance's container ended."""
        subprocess.run(["rm", "-r", str(self.root / f"proc/cgpu_km/{gpu}/{name}")], check=True)

    def reboot(self) -> None:
        """The kernel forgets modules; files stay."""
        subprocess.run(["rm", "-rf", str(self.root / "proc/cgpu_km"), str(self.root / "dev/nvidiactl")], check=True)
        self.write("proc/modules", FILES["proc/modules"])
        self.write("proc/sys/kernel/random/boot_id", "boot-2\n")

    def tree(self) -> dict[str, str]:
        """Every file and link but our own state: path to what it is. Two equal trees are two equal nodes."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            if name.startswith(
                ("var/lib/gpu-isolation", "dev/", "proc/sys/kernel/random", "lib/modules/" + KERNEL + "/index")
            ):
                continue
            if path.is_symlink():
                found[name] = f"-> {path.readlink()}"
            elif path.is_file():
                found[name] = f"{path.stat().st_mode:o} {path.read_text().strip()}"
        return found

    def state(self) -> list[str]:
        """Files of the installer's own, but the lock; the random part of their names left out."""
        folder = self.root / "var/lib/gpu-isolation"
        names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
        return sorted(re.sub(r"originals/[0-9a-f]{8}-", "originals/", name) for name in names)

    def version(self) -> str:
        path = self.root / "proc/cgpu_km/version"
        return path.read_text().strip() if path.exists() else ""

    def works(self, version: str) -> bool:
        """Whether the layer of that version is whole: loaded, its files, its hook."""
        modules = self.root / "lib/modules" / KERNEL / "kernel/virt/lib"
        return (
            self.version() == version
            and f"version={version}" in (modules / f"cgpu_km_{version.replace('.', '_')}.ko").read_text()
            and f"wrapper of cgpu {version}" in (self.root / HOOK).read_text()
        )


def package(folder: Path, version: str = "1.5.10", *, broken: bool = False) -> Path:
    """A package folder as an operator would make it, with its SHA256SUMS."""
    modules = folder / "modules" / KERNEL
    modules.mkdir(parents=True)
    (folder / "cgpu-container-wrapper").write_text(f"wrapper of cgpu {version}\n")
    (folder / "cgpu.conf").write_text(f"ServerAddress=\n# {version}\n")
    (folder / "version").write_text(f"{version}\n")
    state = "broken\n" if broken else ""
    magic = f"vermagic={KERNEL} SMP mod_unload\nversion={version}\n"
    (modules / f"cgpu_km_{version.replace('.', '_')}.ko").write_text(f"{magic}{state}")
    (modules / "cgpu_procfs.ko").write_text(f"vermagic={KERNEL} SMP mod_unload\n")
    sums(folder)
    return folder


def sums(folder: Path) -> None:
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  ./{path.relative_to(folder)}\n"
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "SHA256SUMS"
    ]
    (folder / "SHA256SUMS").write_text("".join(lines))
