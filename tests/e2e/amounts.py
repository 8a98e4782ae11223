"""How much the end-to-end tests do: enough for every change, or, in `make e2e-long`, as much as a night permits."""

import os

LONG = os.environ.get("E2E_LONG") == "1"
SEED = int(os.environ.get("E2E_SEED", "1"))
"""Of what tests choose at random: another one for each of several runs."""


def count(usual: int, long: int) -> int:
    """How many this run does."""
    return long if LONG else usual
