"""The DeviceClasses that the chart creates: see ``templates/dra.yaml``."""

from standin.api.objects import Objects

_SHARED = 'device.driver == "gpu.gpuagent.io" && "sharers" in device.capacity["gpu.gpuagent.io"]'
_ATTRIBUTES = 'device.attributes["gpu.gpuagent.io"]'
CLASSES = {
    "gpu.gpuagent.io": f'device.driver == "gpu.gpuagent.io" && {_ATTRIBUTES}.type == "gpu"',
    "gpu-share.gpuagent.io": _SHARED,
    "gpu-isolated.gpuagent.io": f"{_SHARED} && {_ATTRIBUTES}.memoryIsolated",
    "gpu-core.gpuagent.io": f"{_SHARED} && {_ATTRIBUTES}.memoryIsolated && {_ATTRIBUTES}.computeIsolated",
    "gpu-set.gpuagent.io": f'device.driver == "gpu.gpuagent.io" && {_ATTRIBUTES}.type == "gpu-set"',
}


def create_classes(objects: Objects) -> None:
    """Create them."""
    for name, expression in CLASSES.items():
        spec = {"selectors": [{"cel": {"expression": expression}}]}
        objects.create("deviceclasses", "", {"metadata": {"name": name}, "spec": spec})
