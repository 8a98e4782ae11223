"""The walk waits for what it shows."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from demo.__main__ import offers
from demo.node import DemoNode

PAGE: dict[str, Any] = {"resources": {"aliyun.com/gpu": {"healthy": 8}}}


@pytest.mark.parametrize(("kubelets", "ready"), [(None, False), (7, False), (8, True)])
def test_a_pod_comes_when_kubelet_has_the_list_too(kubelets: int | None, ready: bool) -> None:
    node = cast("DemoNode", SimpleNamespace(kubelet=SimpleNamespace(allocatable=lambda _: kubelets)))
    assert offers(node, "aliyun.com/gpu", 8)(PAGE) is ready
