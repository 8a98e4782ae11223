"""What runs only when it is asked for, and how many examples property tests take.

As many as they say, or with HYPOTHESIS_PROFILE=fuzz a hundred thousand.
"""

import os
import sys
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, Phase, settings

import gpuagent.kube.api.kubeconfig  # noqa: F401 (hides `kubernetes_validate` from the library; tests of the chart need it)

del sys.modules["kubernetes_validate"]

# `jsonschema` loads it to check IRIs, which takes a second of processor time in each process; no schema here has them.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# A disk takes milliseconds for each. Killed processes lose nothing that they wrote, and no test cuts the power.
os.fsync = lambda _: None

# The gate tries the same examples each time: a change turns it red, and never chance. What chance finds is found by
# `make fuzz` and `make test-stability`. No deadline: a busy machine is no fault of the code.
settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "fuzz",
    deadline=None,
    max_examples=100_000,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],  # nothing is kept between runs
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "mutants", deadline=None, max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

ON_REQUEST = {
    "e2e": "end-to-end tests run with -m e2e",  # they build Kubernetes, and need root
    "chart": "tests of the chart run with make chart",  # they take Helm
}
"""Folder, and mark of what is in it, to why it is skipped."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for name, reason in ON_REQUEST.items():
        for item in items:
            if item.path.is_relative_to(Path(__file__).parent / name):
                item.add_marker(name)
                if name not in config.getoption("-m"):
                    item.add_marker(pytest.mark.skip(reason=reason))
    if "PYTEST_XDIST_WORKER" in os.environ and "e2e" not in config.getoption("-m"):
        # Each process begins with its own part of the list: some with all that wait, some with all that compute.
        # End-to-end tests stay in their order: tests of a module have an agent in common.
        items.sort(key=lambda item: crc32(item.nodeid.encode()))
