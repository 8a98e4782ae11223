"""DeviceClasses of this driver: each is a promise that a claim can ask for. The chart creates them."""

from gpuagent.domain.sharing.mode import DRA_DRIVER

_DOMAIN = DRA_DRIVER.removeprefix("gpu.")
WHOLE_CLASS = DRA_DRIVER
"""Whole GPUs."""
SHARE_CLASS = f"gpu-share.{_DOMAIN}"
"""Shares without a promise of isolation."""
ISOLATED_CLASS = f"gpu-isolated.{_DOMAIN}"
"""Shares whose memory is isolated."""
CORE_CLASS = f"gpu-core.{_DOMAIN}"
"""Shares whose memory and compute are isolated."""
SET_CLASS = f"gpu-set.{_DOMAIN}"
"""Sets of linked GPUs."""
CLASSES = (WHOLE_CLASS, SHARE_CLASS, ISOLATED_CLASS, CORE_CLASS, SET_CLASS)
