"""The positions of the GPUs of a topology page in its picture.

They are in two rows, their NUMA nodes side by side, the NVSwitches between the rows. Within a NUMA node, or behind a
PCIe switch there, GPUs change places until NVLinks are straight with few crossings.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import ceil, hypot
from typing import Any

from gpuagent.pages.topology_words import MEANING, nvlinks, pairs

WIDTH, HEIGHT = 164, 80
"""Size of a GPU."""
MARGIN, PAD, INNER_PAD = 32, 20, 12
"""Space around the picture, in a NUMA node, in a PCIe switch."""
HEAD, BAR, BAR_GAP = 36, 32, 12
"""Heights of a NUMA node's name, of an NVSwitch, and between two of them."""
_SPOKE, _NEAR, _NODE_GAP = 40, 24, 60
"""Space between a GPU and an NVSwitch, between GPUs with no link to show, between NUMA nodes."""

Pair = tuple[int, int]
"""Two GPUs by their positions in the page, which name GPUs in this whole module."""


@dataclass(frozen=True, slots=True)
class Spot:
    """The middle of a GPU."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame drawn around GPUs: a NUMA node, or a PCIe switch in one. `inside` says how PCIe joins its members."""

    name: str
    inside: str
    members: Sequence[int]
    x: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The positions of all parts of the picture.

    Attributes:
        direct: how many NVLinks lead straight from GPU to GPU.
        fabrics: the GPUs that reach each other through NVSwitches.
        bar: the middle of the first NVSwitch.
        top, bottom: of the NUMA nodes.
        width: of the picture.
    """

    direct: Mapping[Pair, int]
    fabrics: Sequence[Sequence[int]]
    nodes: Sequence[Frame]
    switches: Sequence[Frame]
    spots: Mapping[int, Spot]
    bar: float
    top: float
    bottom: float
    width: float


@dataclass(frozen=True, slots=True)
class _Grid:
    """The number of rows, and the distances from GPU to GPU."""

    rows: int
    right: float
    down: float

    def columns(self, count: int) -> int:
        return ceil(count / self.rows)

    def width(self, count: int) -> float:
        return (self.columns(count) - 1) * self.right + WIDTH

    def spot(self, place: int, count: int) -> Spot:
        columns = self.columns(count)
        return Spot(place % columns * self.right + WIDTH / 2, place // columns * self.down)


def plan(page: dict[str, Any], top: float, least: float) -> Plan:
    """Plan a picture whose NUMA nodes begin at `top`, at least `least` wide between its margins."""
    direct = {(i, j): nvlinks(link) for i, j, link in pairs(page) if nvlinks(link) and not link["switched"]}
    fabrics = _joined((i, j) for i, j, link in pairs(page) if link["switched"])
    rows = 1 if len(page["gpus"]) < 4 else 2
    bars = _SPOKE + len(fabrics) * (BAR + BAR_GAP) if fabrics else 0
    grid = _Grid(rows, WIDTH + (64 if direct else _NEAR), HEIGHT + (bars + _SPOKE if fabrics else 100))
    nodes, switches, blocks = _side_by_side(page, grid)
    spots = _untangled(blocks, direct, grid)
    if not fabrics and all(spots[i].y == spots[j].y for i, j in direct):
        grid = replace(grid, down=HEIGHT + _NEAR)
        spots = {i: Spot(spot.x, grid.down if spot.y else 0) for i, spot in spots.items()}
    detours = [0, *(_detour(spots, pair) for pair in direct)]
    upper = top + HEAD + (HEAD if switches else 0) - min(detours) + HEIGHT / 2
    lower = upper + (rows - 1) * grid.down
    used = max((node.x + node.width for node in nodes), default=0)
    left = MARGIN + max(least - used, 0) / 2
    return Plan(
        direct=direct,
        fabrics=fabrics,
        nodes=[replace(node, x=node.x + left) for node in nodes],
        switches=[replace(switch, x=switch.x + left) for switch in switches],
        spots={i: Spot(spot.x + left, spot.y + upper) for i, spot in spots.items()},
        bar=upper + HEIGHT / 2 + _SPOKE + (BAR + BAR_GAP) / 2,
        top=top,
        bottom=lower + HEIGHT / 2 + max(detours) + PAD + (bars if rows == 1 else 0),
        width=max(used, least) + 2 * MARGIN,
    )


def _side_by_side(page: dict[str, Any], grid: _Grid) -> tuple[list[Frame], list[Frame], list[dict[int, Spot]]]:
    """NUMA nodes, PCIe switches, and GPUs that may change places with each other; they begin at 0."""
    nodes: list[Frame] = []
    switches: list[Frame] = []
    blocks: list[dict[int, Spot]] = []
    numa = defaultdict(list)
    for i, gpu in enumerate(page["gpus"]):
        numa[gpu["numa_node"]].append(i)
    x = 0.0
    for number in sorted(numa, key=lambda number: (number is None, number or 0)):
        members = numa[number]
        name = "NUMA node not known" if number is None else f"NUMA node {number}"
        inside = " ".join(name for name in by_pcie(page, combinations(members, 2)) if name != "PIX")
        behind = _joined(pair for pair in combinations(members, 2) if by_pcie(page, [pair]) == ["PIX"])
        alone = [i for i in members if not any(i in group for group in behind)]
        groups = sorted([*behind, alone] if alone else behind)
        pads = [INNER_PAD if group in behind else 0 for group in groups]
        spans = [grid.width(len(group)) + 2 * pad for group, pad in zip(groups, pads, strict=True)]
        used = sum(spans) + (len(spans) - 1) * (grid.right - WIDTH)
        width = max(used + 2 * PAD, 8 * len(name + inside) + 48)
        nodes.append(Frame(name, inside, members, x, width))
        at = x + (width - used) / 2
        for group, pad, span in zip(groups, pads, spans, strict=True):
            if pad:
                switches.append(Frame("PCIe switch", "PIX", group, at, span))
            seats = [grid.spot(place, len(group)) for place in range(len(group))]
            blocks.append({i: Spot(at + pad + seat.x, seat.y) for i, seat in zip(group, seats, strict=True)})
            at += span + grid.right - WIDTH
        x += width + _NODE_GAP
    return nodes, switches, blocks


def by_pcie(page: dict[str, Any], among: Iterable[Pair]) -> list[str]:
    """The types of links by PCIe among these pairs, nearest first."""
    types = {page["links"][i][j]["type"] for i, j in among}
    return [name for name in MEANING if name in types]


def _joined(joins: Iterable[Pair]) -> list[list[int]]:
    """The sets of GPUs that these pairs join."""
    sets: list[set[int]] = []
    for pair in joins:
        met = [found for found in sets if not found.isdisjoint(pair)]
        sets = [*(found for found in sets if found not in met), set(pair).union(*met)]
    return sorted(map(sorted, sets))


def _untangled(blocks: Sequence[Mapping[int, Spot]], direct: Mapping[Pair, int], grid: _Grid) -> dict[int, Spot]:
    """Swap two GPUs of a block as long as that makes the picture clearer; then the first one is in the upper row."""
    spots = {i: spot for block in blocks for i, spot in block.items()}
    if not direct:
        return spots
    least, before = _tangle(spots, direct, grid), None
    while least != before:
        before = least
        for i, j in (pair for block in blocks for pair in combinations(block, 2)):
            spots[i], spots[j] = spots[j], spots[i]
            if (now := _tangle(spots, direct, grid)) < least:
                least = now
            else:
                spots[i], spots[j] = spots[j], spots[i]
    turned = {i: Spot(spot.x, grid.down - spot.y) for i, spot in spots.items()}
    is_better = set(turned.values()) == set(spots.values()) and turned[0].y < spots[0].y
    return turned if is_better else spots


def _tangle(spots: Mapping[int, Spot], direct: Mapping[Pair, int], grid: _Grid) -> tuple[int, float]:
    """The number of lines that cross or lead around GPUs; then the length of all NVLinks, in columns and rows."""
    lines = [pair for pair in direct if _is_straight(spots, pair)]
    crossings = sum(_cross(*(spots[i] for i in one + other)) for one, other in combinations(lines, 2))
    reach = sum(
        count * hypot((spots[i].x - spots[j].x) / grid.right, (spots[i].y - spots[j].y) / grid.down)
        for (i, j), count in direct.items()
    )
    return crossings + 2 * (len(direct) - len(lines)), round(reach, 3)


def _cross(a: Spot, b: Spot, c: Spot, d: Spot) -> bool:
    """Whether the line from `a` to `b` crosses that from `c` to `d`; a common end is no crossing."""
    return _side(a, b, c) * _side(a, b, d) < 0 and _side(c, d, a) * _side(c, d, b) < 0


def _side(a: Spot, b: Spot, c: Spot) -> float:
    """On which side of the line from `a` to `b` the third is, by its sign."""
    return (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x)


def _is_straight(spots: Mapping[int, Spot], pair: Pair) -> bool:
    """Whether the line between the middles of two GPUs touches no other GPU."""
    a, b = spots[pair[0]], spots[pair[1]]
    return not any(_touches(a, b, spot) for i, spot in spots.items() if i not in pair)


def _touches(a: Spot, b: Spot, gpu: Spot) -> bool:
    """Whether the line from `a` to `b` comes near a GPU: while it is within its width it is within its height, too."""
    enters, leaves = 0.0, 1.0
    for start, end, middle, half in ((a.x, b.x, gpu.x, WIDTH / 2 + 8), (a.y, b.y, gpu.y, HEIGHT / 2 + 8)):
        if start == end:
            if abs(start - middle) >= half:
                return False
        else:
            first, last = sorted(((middle - half - start) / (end - start), (middle + half - start) / (end - start)))
            enters, leaves = max(enters, first), min(leaves, last)
    return enters < leaves


def _detour(spots: Mapping[int, Spot], pair: Pair) -> float:
    """How far a link leads below its row, or above (negative), around GPUs of the row; 0 for a straight link."""
    a, b = spots[pair[0]], spots[pair[1]]
    if a.y != b.y or _is_straight(spots, pair):
        return 0
    height = 26 + abs(a.x - b.x) / 24
    return height if a.y > min(spot.y for spot in spots.values()) else -height


def way(spots: Mapping[int, Spot], pair: Pair) -> str:
    """The path of a link: straight, from middle to middle; else around the GPUs of its row, or between the rows."""
    a, b = spots[pair[0]], spots[pair[1]]
    if _is_straight(spots, pair):
        return f"M{a.x:g} {a.y:g}L{b.x:g} {b.y:g}"
    if a.y != b.y:
        half = (b.y - a.y) / 2
        edge = HEIGHT / 2 if half > 0 else -HEIGHT / 2
        return f"M{a.x:g} {a.y + edge:g}C{a.x:g} {a.y + half:g} {b.x:g} {a.y + half:g} {b.x:g} {b.y - edge:g}"
    detour, lean = _detour(spots, pair), 16 if a.x < b.x else -16
    edge = a.y + (HEIGHT / 2 if detour > 0 else -HEIGHT / 2)
    handles = edge + detour * 1.2  # a curve comes to 3/4 of them
    return f"M{a.x + lean:g} {edge:g}C{a.x + lean:g} {handles:g} {b.x - lean:g} {handles:g} {b.x - lean:g} {edge:g}"
