"""All objects that the chart and the plain YAML can make, tried on the real API server, where none of them is."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from manifests.render import CHART, FOLDER, PLAIN
from tests.e2e.chart.release import Release
from tests.e2e.cluster import Cluster


@pytest.mark.parametrize("name", PLAIN)
def test_the_api_server_takes_the_plain_yaml_as_it_is(cluster: Cluster, name: str) -> None:
    taken(cluster, [one for one in yaml.safe_load_all((FOLDER / name).read_text()) if one])


def test_the_api_server_takes_everything_that_the_chart_can_be(
    cluster: Cluster, release: Callable[..., Release]
) -> None:
    values = (
        *("mps.enabled=true", "cgpu.enabled=true", "cgpu.image=none", "startupTaint=a/b", "driver.libraries=/lib"),
        *("dra.enabled=true", "dra.extendedResource=aliyun.com/gpu", "image.repository=gpuagent"),
        *("driver.runtimeClassName=new", "driver.createRuntimeClass=true"),
    )
    # The pod of `helm test` needs its account to be there; `test_try_it` runs it.
    text = release().helm("template", "gpuagent", str(CHART), "--no-hooks", "--set", ",".join(values))
    taken(cluster, [one for one in yaml.safe_load_all(text) if one])


def taken(cluster: Cluster, objects: list[dict[str, Any]]) -> None:
    """Each is valid for the real API server, unknown fields refused; nothing is kept."""
    for one in objects:
        path = f"{cluster.client.path_of(one)}?fieldManager=e2e&dryRun=All&fieldValidation=Strict"
        status, answer = cluster.api("PATCH", path, one, "application/apply-patch+yaml")
        assert status in (200, 201), answer
