"""Calls about the health of a GPU."""

import pynvml

from gpuagent.domain.gpus.health_verdict import HealthReading
from gpuagent.nvml.answers import unsigned
from gpuagent.nvml.binding.calls import GONE, Handle
from gpuagent.nvml.binding.gpu_calls import GpuCalls
from gpuagent.nvml.driver_errors import CallError

RECOVERY_ACTION = int(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
REMAP_FAILED = int(pynvml.NVML_FI_DEV_REMAPPED_FAILURE)
REMAP_PENDING = int(pynvml.NVML_FI_DEV_REMAPPED_PENDING)
RETIREMENT_PENDING = int(pynvml.NVML_FI_DEV_RETIRED_PENDING)
MEMORY_ERRORS = int(pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL)
HOT = int(pynvml.nvmlClocksEventReasonHwThermalSlowdown)
POWER_BRAKE = int(pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown)


class HealthCalls(GpuCalls):
    """What a GPU reports of its health. Every method raises CallError if NVML refuses."""

    def recovery_action(self, gpu: Handle) -> int | None:
        """The recovery action that the driver recommends; None where the driver has none (before r570)."""
        return self._fields(gpu, RECOVERY_ACTION)[RECOVERY_ACTION]

    def condition(self, gpu: Handle) -> HealthReading:
        """All but the recovery action. A value that the GPU lacks counts as healthy."""
        values = self._fields(gpu, REMAP_FAILED, REMAP_PENDING, RETIREMENT_PENDING, MEMORY_ERRORS)
        # GPUs before the A100 retire pages of memory; later ones remap rows.
        is_pending = values[REMAP_PENDING] or values[RETIREMENT_PENDING]
        reasons = self._clocks_event_reasons(gpu)
        return HealthReading(
            remap_failed=bool(values[REMAP_FAILED]),
            remap_pending=bool(is_pending),
            memory_errors=values[MEMORY_ERRORS] or 0,
            hot=bool(reasons & HOT),
            power_brake=bool(reasons & POWER_BRAKE),
            mig=self._mig_if_reported(gpu),
        )

    def _mig_if_reported(self, gpu: Handle) -> bool | None:
        # MIG mode does not belong to health, so a failure to report it must not hide the other values.
        try:
            return self.mig_enabled(gpu)
        except CallError as err:
            if err.code in GONE:
                raise
            return None

    def _clocks_event_reasons(self, gpu: Handle) -> int:
        """NVML's bits of the reasons for slow clocks; 0 where the GPU has none. Drivers before 535 use the second."""
        for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            try:
                return self._read(function, gpu, unsigned)
            except CallError as err:
                # Slow clocks are only a note: a GPU that does not report them counts as healthy.
                if err.code in GONE:
                    raise
        return 0
