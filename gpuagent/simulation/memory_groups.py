"""Cgroups as the driver's accounting of memory knows them: a tree, and kernel addresses that are used again."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from random import Random

CgroupId = Hashable
"""What tells a cgroup from every other, also from a later one of the same path: for example, its inode."""

_FIRST_ADDRESS = 0xFFFF_8880_0000_0000
_ADDRESS_STEP = 0x1000
USUALLY_REUSED = 0.84
"""How often a new cgroup got the address of a removed one, where it was measured (Linux 7.2, 170 pods)."""


@dataclass(frozen=True, slots=True, eq=False)
class Cgroup:
    """A cgroup. `address` is where the kernel keeps it, and no other cgroup has it at the same time.

    Attributes:
        ancestors: from its parent up to the root.
        has_dmem_files: whether the kernel's controller ``dmem``, where there is one, is enabled for it.
    """

    identity: CgroupId
    address: int
    ancestors: tuple["Cgroup", ...]
    has_dmem_files: bool

    @property
    def is_root(self) -> bool:
        return not self.ancestors

    def upwards(self) -> Iterator["Cgroup"]:
        """The cgroup itself, then its ancestors up to the root."""
        yield self
        yield from self.ancestors


class AddressPool:
    """Gives addresses to cgroups. The same seed gives the same addresses.

    Args:
        reused: how likely a new cgroup gets the address of a removed one, from 0.0 to 1.0 (whenever there is one).
    """

    def __init__(self, seed: int = 0, reused: float = USUALLY_REUSED) -> None:
        self._random = Random(seed)  # noqa: S311 (no secret)
        self._reused = reused
        self._free: list[int] = []
        self._next = _FIRST_ADDRESS

    def take(self) -> int:
        if self._free and self._random.random() < self._reused:
            position = self._random.randrange(len(self._free))
            return self._free.pop(position)
        address = self._next
        self._next += _ADDRESS_STEP
        return address

    def give_back(self, address: int) -> None:
        self._free.append(address)


class CgroupTree:
    """The cgroups of a machine by identity."""

    def __init__(self, root: CgroupId, addresses: AddressPool) -> None:
        self._addresses = addresses
        top = Cgroup(root, addresses.take(), ancestors=(), has_dmem_files=False)
        self.root = top
        self._cgroups = {root: top}

    def __contains__(self, identity: CgroupId) -> bool:
        return identity in self._cgroups

    def __getitem__(self, identity: CgroupId) -> Cgroup:
        return self._cgroups[identity]

    def get(self, identity: CgroupId) -> Cgroup | None:
        return self._cgroups.get(identity)

    def add(self, identity: CgroupId, parent: CgroupId, has_dmem_files: bool) -> Cgroup:
        if identity in self._cgroups:
            raise ValueError(f"there is a cgroup {identity!r} already")
        above = self._cgroups[parent]
        # The kernel enables a controller only below a cgroup that has it; the root has it without files.
        inherits = above.is_root or above.has_dmem_files
        cgroup = Cgroup(
            identity=identity,
            address=self._addresses.take(),
            ancestors=tuple(above.upwards()),
            has_dmem_files=has_dmem_files and inherits,
        )
        self._cgroups[identity] = cgroup
        return cgroup

    def remove(self, identity: CgroupId) -> Cgroup:
        cgroup = self._cgroups[identity]
        if cgroup.is_root:
            raise ValueError("the root cgroup cannot be removed")
        for other in self._cgroups.values():
            if cgroup in other.ancestors:
                raise ValueError(f"cgroup {identity!r} has {other.identity!r} below it")
        del self._cgroups[identity]
        self._addresses.give_back(cgroup.address)
        return cgroup
