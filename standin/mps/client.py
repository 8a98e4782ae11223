"""A client of MPS, as far as its memory caps go: which of the GPUs that a program sees are limited, and to what.

NVIDIA documents that CUDA_MPS_PINNED_DEVICE_MEM_LIMIT has entries ``device=limit``, separated by commas, with the
semantics of CUDA_VISIBLE_DEVICES for its devices. They count the GPUs that the program sees. Measured on driver 615
(NVIDIA Dynamo's guide to GPU sharing): an entry for a GPU that the program does not see drops every limit.
"""

import re
from collections.abc import Mapping, Sequence

LIMITS = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_ENTRY = re.compile(r"([0-9]+)=([0-9]+)([MG])")


def effective_caps(env: Mapping[str, str], visible: Sequence[str]) -> dict[str, int | None]:
    """MiB to which each visible GPU is limited; None for no limit.

    Args:
        env: environment of the program.
        visible: UUIDs of the GPUs that it sees, in CUDA's order.
    """
    caps: dict[str, int | None] = dict.fromkeys(visible)
    limits: dict[str, int] = {}
    for text in filter(None, env.get(LIMITS, "").split(",")):
        entry = _ENTRY.fullmatch(text.strip())
        if entry is None or int(entry[1]) >= len(visible):
            return caps
        mib = int(entry[2]) * (1024 if entry[3] == "G" else 1)
        limits[visible[int(entry[1])]] = mib
    return {**caps, **limits}
