"""Errors between this process and the NVIDIA driver, in words for people."""

from gpuagent.host.nvidia_driver import ControlDevice

LIBRARY = "libnvidia-ml.so.1"


class DriverError(Exception):
    """The driver as a whole cannot be used: missing, not loaded, of another version, not permitted. Retry later."""


class CallError(Exception):
    """One NVML call failed.

    Attributes:
        function: NVML's name of it, ``nvmlDeviceGetUUID``.
        code: NVML's return code, or `ODD`.
        words: NVML's words for the code, ``GPU is lost``.
    """

    def __init__(self, function: str, code: int, words: str) -> None:
        super().__init__(f"{function}: {words}")
        self.function = function
        self.code = code
        self.words = words


ODD = -1
"""NVML returned no error, but an answer that its interface does not allow."""

# Keyed by NVML's return codes, which are part of its ABI.
_DRIVER_ADVICE = {
    ODD: "look whether `nvidia-smi` shows the same, and whether another driver version does",
    1: "NVML was shut down meanwhile (the driver was unloaded or reloaded)",
    4: "no permission to use the driver: run the agent as root in a privileged container and check the modes of"
    " /dev/nvidiactl and /dev/nvidia*",
    9: "the kernel module is not loaded: look at `lsmod | grep nvidia` and `dmesg` on the node, then `modprobe nvidia`",
    12: f"{LIBRARY} was not found. Install the NVIDIA driver on this node, or give it to the agent's container"
    " (chart value driver.runtimeClassName=nvidia, or NVIDIA_VISIBLE_DEVICES=all with the NVIDIA runtime as default)",
    13: f"{LIBRARY} is too old for this agent: upgrade the NVIDIA driver",
    16: "a GPU waits for a reset: `nvidia-smi --gpu-reset`, or reboot the node",
    17: "the operating system refused (device cgroup or seccomp): run the agent's container privileged",
    18: f"{LIBRARY} and the loaded kernel module are of different versions (the driver was upgraded). Reload the"
    " module or reboot the node, then restart the agent's pod",
}
_GPU_ADVICE = {
    3: "the agent cannot serve a GPU without this answer; see whether another driver version gives it",
    ODD: "see NVRM lines in `dmesg`, and whether another driver version answers the same",
    4: "check the mode of its /dev/nvidia node and that the agent's container is privileged",
    7: "check the GPU's external power cables",
    11: "the kernel gives it no interrupts; see `dmesg`, check the BIOS, reboot the node",
    13: f"{LIBRARY} is too old for this agent: upgrade the NVIDIA driver",
    14: "its infoROM is corrupted; have the board checked",
    15: "it fell off the bus; see NVRM lines in `dmesg`, drain and reboot the node, reseat or replace the GPU",
    16: "drain it and run `nvidia-smi --gpu-reset`, or reboot the node",
    999: "see NVRM lines in `dmesg`",
}

DRIVER_WIDE = frozenset({1, 9, 12, 18})
"""Codes about the driver, not about a GPU: uninitialized, not loaded, no library, version mismatch."""


VERSION_MISMATCH = 18
_OF_ONE_GPU = frozenset({ODD, 2, 3, 6, 7, 11, 13, 14, 15, 16, 25})
"""Codes that say what is wrong with one GPU, or that it lacks a function. Any other code from every GPU is the driver's
or the container's, such as UNKNOWN, NO_PERMISSION and OPERATING_SYSTEM."""


def may_be_shared(err: CallError) -> bool:
    """Whether the error of one GPU may have a cause that all GPUs share."""
    return err.code not in _OF_ONE_GPU


def shared_error(err: CallError, count: int, control: ControlDevice) -> DriverError:
    """`err` as the answer of all `count` GPUs, with what the driver's control device tells about it."""
    who = f"and none of the {count} GPUs can be read" if count > 1 else "and the only GPU cannot be read"
    if control.forbidden:
        advice = (
            f"{control.path} cannot be opened ({control.error}): the agent's container has lost its devices, as a "
            "container without privileges does after `systemctl daemon-reload`. A restart of the container gives them "
            "back; run it privileged so that it keeps them"
        )
    elif control.error:
        advice = f"{control.path} cannot be opened ({control.error}): look whether the driver is loaded on the node"
    else:
        advice = f"{control.path} can be opened, so see NVRM lines in `dmesg`, and what `nvidia-smi` says on the node"
    return DriverError(f"{err}, {who}; {advice}")


def driver_error(err: CallError) -> DriverError:
    """`err` as a failure of the whole driver: what failed, NVML's words, what to do."""
    advice = _DRIVER_ADVICE.get(err.code)
    return DriverError(f"{err} ({advice})" if advice else f"{err} (NVML code {err.code}; see `dmesg` on the node)")


def gpu_reason(err: CallError) -> str:
    """`err` as a failure of one GPU: what failed, NVML's words, what to do."""
    advice = _GPU_ADVICE.get(err.code)
    return f"{err}; {advice}" if advice else f"{err} (NVML code {err.code})"
