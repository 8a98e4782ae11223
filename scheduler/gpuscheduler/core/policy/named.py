"""The policies by the names that operators use."""

from gpuscheduler.core.policy.binpack_spread import Binpack, Spread
from gpuscheduler.core.policy.fgd import Fgd
from gpuscheduler.core.policy.fleet import CostPolicy
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.policy.strand import Strand

NAMES = ("strand", "fgd", "binpack", "spread")


def named(name: str, mix: Mix) -> CostPolicy:
    """The policy of one of `NAMES`, for pods of `mix`."""
    match name:
        case "strand":
            return Strand(mix)
        case "fgd":
            return Fgd(mix)
        case "binpack":
            return Binpack()
        case "spread":
            return Spread()
        case _:
            raise ValueError(f"no policy {name!r}; one of {', '.join(NAMES)}")
