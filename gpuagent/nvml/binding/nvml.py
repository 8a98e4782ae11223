"""The whole facade."""

from gpuagent.nvml.binding.fault_events import FaultEvents
from gpuagent.nvml.binding.gpu_calls import GpuCalls
from gpuagent.nvml.binding.health_calls import HealthCalls
from gpuagent.nvml.binding.wiring_calls import WiringCalls


class Nvml(HealthCalls, WiringCalls, FaultEvents, GpuCalls):
    """NVML for one thread. Other threads may read `pending`: the call in progress, None between calls."""
