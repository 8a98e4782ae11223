"""A fake host root: each file, module and command of the real one has its stand-in here."""

import hashlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Container, Sequence
from pathlib import Path

from gpuisolation.host.files import Files
from gpuisolation.host.root import Host, Output

KERNEL = "5.10.134-16.al8.x86_64"
HOOK = "usr/bin/nvidia-container-runtime-hook"
TOOLKIT = "usr/bin/nvidia-container-toolkit"
CONTAINER = "3f" * 32
POD = "0d5cf6e8-3b0a-4a4e-9f43-0123456789ab"

# The stand-ins do what the real commands do as far as the installer can see it.
# A module is a text: its vermagic, the version it shows in /proc, whether it loads.


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _loaded(root: Path) -> list[str]:
    return [line.split()[0] for line in _lines(root / "proc/modules")]


def depmod(root: Path, kernel: str) -> Output:
    folder = root / "lib/modules" / kernel
    names = sorted(path.stem for path in (folder / "kernel/virt/lib").glob("*.ko"))
    (folder / "index").write_text("".join(f"{name}\n" for name in names))
    return Output(0, "")


def modprobe(root: Path, module: str) -> Output:
    folder = root / "lib/modules" / KERNEL
    if module in _loaded(root):
        return Output(0, "")
    if module not in _lines(folder / "index"):
        return Output(1, f"modprobe: FATAL: Module {module} not found\n")
    ko = _lines(folder / f"kernel/virt/lib/{module}.ko")
    if not (root / "dev/nvidiactl").exists():
        return Output(1, "modprobe: no nvidia\n")
    if "broken" in ko:
        return Output(1, f"modprobe: ERROR: could not insert '{module}': Invalid argument\n")
    with (root / "proc/modules").open("a") as modules:
        modules.write(f"{module} 16384 0 - Live 0x0\n")
    if module.startswith("cgpu_km"):
        for gpu in ("0", "1"):
            shown = root / "proc/cgpu_km" / gpu
            shown.mkdir(parents=True, exist_ok=True)
            for name, number in {"policy": 0, "max_inst": 20, "free_weight": 100}.items():
                (shown / name).write_text(f"{number}\n")
        versions = [line.removeprefix("version=") for line in ko if line.startswith("version=")]
        (root / "proc/cgpu_km/version").write_text("".join(f"{version}\n" for version in versions))
    return Output(0, "")


def rmmod(root: Path, module: str) -> Output:
    if module == "cgpu_procfs" and any(name.startswith("cgpu_km") for name in _loaded(root)):
        return Output(1, "rmmod: ERROR: Module cgpu_procfs is in use by: cgpu_km\n")
    if (root / "busy").exists():
        return Output(1, f"rmmod: ERROR: Module {module} is in use\n")
    left = [line for line in _lines(root / "proc/modules") if line.split()[0] != module]
    (root / "proc/modules").write_text("".join(f"{line}\n" for line in left))
    if module.startswith("cgpu_km"):
        shutil.rmtree(root / "proc/cgpu_km")
    return Output(0, "")


QUERIES = {"query-compute-apps": "compute-apps", "query-gpu": "gpus"}
"""Words in arguments of nvidia-smi, and the fake root's file with the answer. They change nothing."""


def nvidia_smi(root: Path, *arguments: str) -> Output:
    for query, answers in QUERIES.items():
        if any(query in argument for argument in arguments):
            return Output(0, "".join(f"{line}\n" for line in _lines(root / answers)))
    for device in ("nvidiactl", "nvidia0", "nvidia1"):
        (root / "dev" / device).touch()
    return Output(0, "")


COMMANDS: dict[str, Callable[..., Output]] = {
    "usr/sbin/depmod": depmod,
    "usr/sbin/modprobe": modprobe,
    "usr/sbin/rmmod": rmmod,
    "usr/bin/nvidia-smi": nvidia_smi,
    "usr/bin/docker": lambda *_: Output(0, "Docker version 20.10.24, build 297e128\n"),
    "usr/bin/nvidia-ctk": lambda *_: Output(0, "NVIDIA Container Toolkit CLI version 1.17.8\ncommit: f202b80a9b9d\n"),
    "usr/bin/containerd": lambda *_: Output(0, "containerd github.com/containerd/containerd v1.6.28 ae07eda36dd2\n"),
}
"""Functions, because tests run them thousands of times. A file with any other text is a shell script."""

FUNCTION = "a function of the tests"
"""What the file of such a command says."""

# $R is the fake root.
SCRIPTS = {
    "usr/bin/make": """
        printf 'vermagic=KERNEL SMP mod_unload\\nversion=0.8.8\\n' > $R$2/cgpu_km.ko
        """,
    "usr/bin/nvidia-cuda-mps-control": """
        read -r question
        # A daemon for all GPUs in /run/mps, and two of single GPUs in /run/gpus.
        case "$CUDA_MPS_PIPE_DIRECTORY $question" in
        "/run/gpus/a get_server_list") echo 4300; exit ;;
        "/run/gpus/a get_client_list 4300") echo 4200; exit ;;
        "/run/gpus/b get_server_list") exit ;;
        "/run/gpus/a "*) echo 100.0; exit ;;
        "/run/mps "*) ;;
        *) echo "Cannot find MPS control daemon process"; exit 1 ;;
        esac
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
    "sys/fs/cgroup/devices/kubepods/tasks": "",
    "proc/driver/nvidia/params": 'ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nRegistryDwords: ""\n',
    "gpus": "0, [N/A]\n1, [N/A]\n",
    "proc/77/cmdline": "/usr/bin/kubelet\0--config=/var/lib/kubelet/config.yaml\0",
    "var/lib/kubelet/config.yaml": "cpuManagerPolicy: none\n",
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
            if path.exists() and path.read_text() == FUNCTION:
                return COMMANDS[f"{folder}/{argv[0]}"](self.root, *argv[1:])
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


class Counter:
    """Counts effects, and kills this process right before those of the given numbers; with `after`, right after."""

    def __init__(self, numbers: Container[int] = (), *, after: bool = False) -> None:
        self.count = 0
        self.numbers, self.after = numbers, after

    def around(self, effect):
        self.count += 1
        if self.count in self.numbers and not self.after:
            self.kill()
        result = effect()
        if self.count in self.numbers and self.after:
            self.kill()
        return result

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class CountedFiles(Files):
    """Files whose every primitive is an effect that can be the last."""

    def __init__(self, host: Host, counter: Counter) -> None:
        super().__init__(host)
        self.counter = counter

    def copy(self, source, to, mode):
        # A copy is killed in the middle: half a file lies there.
        with to.open("xb") as half:
            half.write(source.read_bytes()[: source.stat().st_size // 2])

        def whole():
            to.unlink()
            super(CountedFiles, self).copy(source, to, mode)

        self.counter.around(whole)

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
        only_asks = argv[0] in {"docker", "containerd", "nvidia-ctk"} or any("--query-gpu" in one for one in argv)
        if only_asks:
            return super().run(argv, stdin, env)
        return self.counter.around(lambda: super(CountedCommands, self).run(argv, stdin, env))


class FakeHost:
    """The fake root, and what a test does to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in FILES.items():
            self.write(name, text)
        for name in COMMANDS:
            self.write(name, FUNCTION)
        for name, script in SCRIPTS.items():
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
        shutil.rmtree(self.root / "proc" / str(pid))

    def instance(self, gpu: int = 0, name: str = CONTAINER[:12], weight: int = 4) -> None:
        folder = f"proc/cgpu_km/{gpu}/{name}"
        self.write(f"{folder}/id", "1\n")
        self.write(f"{folder}/memsize", f"{4 * 2**30}\n")
        self.write(f"{folder}/weight", f"{weight}\n")
        self.write(f"{folder}/meminfo", f"Free: {3 * 2**30}\nPID: 41 Mem: {2**29}\nPID: 42 Mem: {2**29}\n")

    def ends(self, name: str, gpu: int = 0) -> None:
        """The instance's container ended."""
        shutil.rmtree(self.root / f"proc/cgpu_km/{gpu}/{name}")

    def reboot(self) -> None:
        """The kernel forgets modules; files stay."""
        shutil.rmtree(self.root / "proc/cgpu_km", ignore_errors=True)
        (self.root / "dev/nvidiactl").unlink(missing_ok=True)
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
