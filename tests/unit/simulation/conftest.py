"""The simulated drivers that the tests of the NVML edge use, too."""

from tests.unit.nvml.conftest import make_box, only_what_hangs_is_late, simulate, watch

__all__ = ["make_box", "only_what_hangs_is_late", "simulate", "watch"]
