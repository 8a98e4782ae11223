"""The few calls of the CUDA driver API that the checks on a real GPU need, through ctypes: no toolkit, no compiler."""

import ctypes
import time
from collections.abc import Callable

OUT_OF_MEMORY = 2
MIB = 1 << 20

SPIN = b"""
.version 6.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 out, .param .u32 rounds)
{
    .reg .pred %p;
    .reg .b32 %r<4>;
    .reg .b64 %a;
    ld.param.u64 %a, [out];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, 0;
again:
    mad.lo.s32 %r2, %r2, 1664525, 1013904223;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p, %r3, %r1;
    @%p bra again;
    st.global.u32 [%a], %r2;
    ret;
}
\0"""
"""A kernel that only computes, so that its speed is proportional to the multiprocessors that it may use."""

FAULT = SPIN.replace(b"st.global.u32 [%a], %r2;", b"mov.u64 %a, 16;\n    st.global.u32 [%a], %r2;")
"""The same, and it writes to an address that is not mapped."""

_MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
_ATTACH_GLOBAL = 1  # CU_MEM_ATTACH_GLOBAL
_BLOCKS, _THREADS, _ROUNDS = 2048, 256, 20_000


class CudaError(Exception):
    """A call of the driver failed."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} failed with CUDA error {code}")
        self.code = code

    @property
    def is_out_of_memory(self) -> bool:
        return self.code == OUT_OF_MEMORY


class Cuda:
    """A context on the first GPU this process sees.

    Raises:
        OSError: there is no CUDA driver.
        CudaError: a call failed; in MPS 805 to 807 are about the daemon and its server.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        device, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuCtxCreate_v2", ctypes.byref(self._context), 0, device)
        count = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(count), _MULTIPROCESSORS, device)
        self.multiprocessors = count.value

    def allocate(self, mib: int) -> int:
        """Take device memory; returns its address."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(mib * MIB))
        return address.value

    def allocate_managed(self, mib: int) -> int:
        """Take unified memory; returns its address."""
        address = ctypes.c_uint64()
        size = ctypes.c_size_t(mib * MIB)
        self._call("cuMemAllocManaged", ctypes.byref(address), size, ctypes.c_uint(_ATTACH_GLOBAL))
        # Only memory that is used on the GPU is there.
        self._call("cuMemsetD8_v2", address, ctypes.c_ubyte(1), size)
        self._call("cuCtxSynchronize")
        return address.value

    def memory_info(self) -> tuple[int, int]:
        """Free and total memory in bytes, as this program is told."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def fill(self, step_mib: int = 64, *, most_mib: int | None = None) -> int:
        """Take memory until the driver refuses it, or until `most_mib`; returns how many MiB it gave."""
        return _fill(self.allocate, step_mib, most_mib)

    def fill_managed(self, step_mib: int, *, most_mib: int | None = None) -> int:
        """The same with unified memory."""
        return _fill(self.allocate_managed, step_mib, most_mib)

    def fault(self) -> None:
        """Have a fatal fault. Raises CudaError, as the fault ends the context."""
        self.speed(1.0, FAULT)

    def speed(self, seconds: float, code: bytes = SPIN) -> float:
        """Kernels per second over about that time."""
        kernel = self._kernel(code)
        out = ctypes.c_uint64(self.allocate(1))
        rounds = ctypes.c_uint32(_ROUNDS)
        # The driver takes the address of each argument.
        arguments = (ctypes.c_void_p * 2)(_address_of(out), _address_of(rounds))
        # The first one compiles.
        self._launch(kernel, arguments)
        began = time.monotonic()
        count = 0
        took_s = 0.0
        while took_s < seconds:
            self._launch(kernel, arguments)
            count += 1
            took_s = time.monotonic() - began
        return count / took_s

    def _kernel(self, code: bytes) -> ctypes.c_void_p:
        """The kernel of this PTX code."""
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), code)
        kernel = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(kernel), module, b"spin")
        return kernel

    def _launch(self, kernel: ctypes.c_void_p, arguments: object) -> None:
        """Compute once, and wait for the end."""
        blocks = (_BLOCKS, 1, 1)
        threads = (_THREADS, 1, 1)
        self._call("cuLaunchKernel", kernel, *blocks, *threads, 0, None, arguments, None)
        self._call("cuCtxSynchronize")

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise CudaError(name, code)


def _address_of(value: "ctypes.c_uint64 | ctypes.c_uint32") -> ctypes.c_void_p:
    return ctypes.cast(ctypes.byref(value), ctypes.c_void_p)


def _fill(take: Callable[[int], int], step_mib: int, most_mib: int | None) -> int:
    """Take memory until the driver refuses it, or until `most_mib`; returns how many MiB it gave."""
    taken = 0
    while most_mib is None or taken < most_mib:
        try:
            take(step_mib)
        except CudaError as err:
            if not err.is_out_of_memory:
                raise
            break
        taken += step_mib
    return taken
