"""The DeviceClasses that the chart creates, for agents that run outside of it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import yaml

from manifests.render import CHART
from tests.e2e.build import bin_dir
from tests.e2e.cluster import Cluster


@contextmanager
def chart_classes(cluster: Cluster, **dra: str) -> Iterator[None]:
    """The classes of a chart with these values of `dra`, as long as the context lasts."""
    classes = _rendered(tuple(dra.items()))
    try:
        for device_class in classes:
            cluster.apply(device_class)
        yield
    finally:
        for device_class in classes:
            cluster.api("DELETE", cluster.client.path_of(device_class))


@cache
def _rendered(dra: tuple[tuple[str, str], ...]) -> list[dict[str, Any]]:
    values = [f"--set-string=dra.{key}={value}" for key, value in dra]
    command = [
        str(bin_dir() / "helm"),
        "template",
        "x",
        str(CHART),
        "--set=image.repository=gpuagent",
        "--set=dra.enabled=true",
    ]
    command += values
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [one for one in yaml.safe_load_all(made) if one and one["kind"] == "DeviceClass"]
