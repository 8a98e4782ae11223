"""A ResourceClaimTemplate for an amount of GPUs, as YAML.

Source of the fields and limits: k8s.io/api/resource/v1, types.go.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpuagent.domain.dra.device_classes import CORE_CLASS, ISOLATED_CLASS, SHARE_CLASS, WHOLE_CLASS
from gpuagent.domain.dra.resource_slice import memory_text
from gpuagent.domain.sharing.mode import CORE_PERCENT_PER_GPU

MOST_GPUS = 32
"""Devices of one claim."""
_MEMORY = re.compile(r"([1-9][0-9]{0,6})(?:(M|G)iB?)?")
_LABEL = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_NAMESPACE, _NAME = re.compile(_LABEL), re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_LONGEST_NAMESPACE, _LONGEST_NAME = 63, 253


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The GPUs that a claim asks for.

    Attributes:
        gpus: number of GPUs.
        memory_mib: on each GPU; None for whole GPUs.
        cores: percent of the compute of each GPU, with `memory_mib` only; None for no guarantee.
        isolated: the memory must be isolated. With `cores`, memory and compute must in any case.
    """

    gpus: int = 1
    memory_mib: int | None = None
    cores: int | None = None
    isolated: bool = False

    @property
    def device_class(self) -> str:
        if self.memory_mib is None:
            return WHOLE_CLASS
        if self.cores is not None:
            return CORE_CLASS
        return ISOLATED_CLASS if self.isolated else SHARE_CLASS

    @property
    def name(self) -> str:
        """A name for the template."""
        parts = ["gpu" if self.gpus == 1 else f"{self.gpus}-gpus"]
        if self.memory_mib is not None:
            parts.append(memory_text(self.memory_mib).lower())
        if self.cores is not None:
            parts.append(str(self.cores))
        elif self.isolated:
            parts.append("isolated")
        return "-".join(parts)

    @property
    def phrase(self) -> str:
        """The amounts in words."""
        of = "a GPU" if self.gpus == 1 else f"each of {self.gpus} GPUs"
        if self.memory_mib is None:
            return "A whole GPU" if self.gpus == 1 else f"{self.gpus} whole GPUs"
        memory = f"{memory_text(self.memory_mib)}B".replace("GiB", " GiB").replace("MiB", " MiB")
        if self.cores is not None:
            return f"{memory} and {self.cores} % of {of}, both isolated"
        return f"{memory} of {of}, {'isolated' if self.isolated else 'isolated where the node has an isolation layer'}"


def memory_mib(text: str) -> int:
    """Read ``8`` (GiB), ``8Gi``, ``8GiB``, ``512Mi`` or ``512MiB``. Raises ValueError."""
    match = _MEMORY.fullmatch(text)
    if not match:
        msg = f"{text!r} is not an amount of memory: give whole GiB, such as 8, or MiB, such as 512Mi"
        raise ValueError(msg)
    return int(match[1]) * (1 if match[2] == "M" else 1024)


def cores(text: str) -> int:
    """Read a percentage of a GPU's compute. Raises ValueError."""
    return _whole(text, CORE_PERCENT_PER_GPU, "a percentage of a GPU's compute")


def gpus(text: str) -> int:
    """Read a number of GPUs. Raises ValueError."""
    return _whole(text, MOST_GPUS, "the number of GPUs of one claim")


def _whole(text: str, most: int, what: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,2}", text) or int(text) > most:
        msg = f"{text!r} is not {what}: give a whole number from 1 to {most}"
        raise ValueError(msg)
    return int(text)


def template_name(text: str) -> str:
    """Read the name of an object. Raises ValueError."""
    if len(text) > _LONGEST_NAME or not _NAME.fullmatch(text):
        msg = f"{text!r} is not a name: use lower-case letters, digits, dots and dashes, such as chat-8g"
        raise ValueError(msg)
    return text


def namespace(text: str) -> str:
    """Read the name of a namespace. Raises ValueError."""
    if len(text) > _LONGEST_NAMESPACE or not _NAMESPACE.fullmatch(text):
        msg = f"{text!r} is not a namespace: use at most 63 lower-case letters, digits and dashes"
        raise ValueError(msg)
    return text


def template_yaml(wanted: Wanted, name: str, namespace: str) -> str:
    """The template, with an empty `namespace` for the one in which it is created."""
    return "\n".join(_lines(wanted, name, namespace)) + "\n"


def _lines(wanted: Wanted, name: str, namespace: str) -> Iterator[str]:
    yield f"# {wanted.phrase}."
    yield f'# In the pod: resourceClaims: [{{name: gpu, resourceClaimTemplateName: "{name}"}}]'
    yield "# In its container: resources: {claims: [{name: gpu}]}"
    yield "apiVersion: resource.k8s.io/v1"
    yield "kind: ResourceClaimTemplate"
    yield "metadata:"
    yield f'  name: "{name}"'
    if namespace:
        yield f'  namespace: "{namespace}"'
    yield "spec:"
    yield "  spec:"
    yield "    devices:"
    yield "      requests:"
    yield "        - name: gpu"
    yield "          exactly:"
    yield f"            deviceClassName: {wanted.device_class}"
    if wanted.gpus > 1:
        yield f"            count: {wanted.gpus}"
    if wanted.memory_mib is not None:
        yield "            capacity:"
        yield "              requests:"
        yield f"                memory: {memory_text(wanted.memory_mib)}"
        if wanted.cores is not None:
            yield f'                cores: "{wanted.cores}"'
