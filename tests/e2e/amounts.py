"""How much the end-to-end tests do: what every change needs, or, in `make e2e-long`, what a night permits."""

import os

import pytest

LONG = os.environ.get("E2E_LONG") == "1"
SEED = int(os.environ.get("E2E_SEED", "1"))
"""Of what tests choose at random: another one for each of several runs."""
only_long = pytest.mark.skipif(not LONG, reason="runs in make e2e-long")
older_kubelet_in_long = pytest.mark.parametrize(
    "kubelet", ["1.36", pytest.param("1.30", marks=only_long)], indirect=True
)
"""For tests of what kubelet 1.30 does as later ones do."""


def count(usual: int, long: int) -> int:
    """How many this run does."""
    return long if LONG else usual
