"""What kube-scheduler checks of devices and is not checked here. Where it counts, nothing is said to be free."""

from collections.abc import Iterator, Sequence

from gpuscheduler.core.explain import words
from gpuscheduler.core.explain.device_check import Demand
from gpuscheduler.core.explain.placing import Part
from gpuscheduler.core.explain.published import Device
from gpuscheduler.core.explain.selection import Selection, Work, selects


def unchecked(parts: Sequence[Part], devices: Sequence[Device], work: Work) -> Iterator[str]:
    """What is not checked of devices that are free for all else. Raises WorkSpent."""
    for part in parts:
        for asked in part.alternatives:
            yield from _of_selectors(asked, devices, work)
            if asked.request.is_admin:
                # Some versions of kube-scheduler compare amounts for these, too.
                yield "what adminAccess needs"


def _of_selectors(asked: Demand, devices: Sequence[Device], work: Work) -> Iterator[str]:
    for condition in asked.conditions:
        selections = {selects(condition.tree, device, work) for device in devices}
        if Selection.NOT_CHECKED in selections:
            yield words.shown(condition.text)
