"""The topology page as a picture of the box, an SVG."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import pairwise, product
from math import ceil
from typing import Any
from unicodedata import east_asian_width
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from gpuagent.pages.floor_plan import (
    BAR,
    BAR_GAP,
    HEAD,
    HEIGHT,
    INNER_PAD,
    MARGIN,
    WIDTH,
    Plan,
    Spot,
    by_pcie,
    plan,
    way,
)
from gpuagent.pages.topology_words import MEANING, gbps, models, nvlinks, pairs, state
from gpuagent.system.printable import printable

_Style = Mapping[str, str | float]

_TOP = 92
_STATES, _ENTRY, _LINE = 160, 520, 26
"""Widths of the legend's columns, and height of its lines."""
_FONTS = "-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, 'DejaVu Sans', sans-serif"
_BOLD = 1.2
"""How much wider bold text is, at most."""
_INK, _QUIET, _PALE = "#1f2328", "#57606a", "#ffffff"
_BY_COUNT = ("#5b2a86", "#1b9e77", "#e08a00", "#7a8794")
"""Colors of links, those of most NVLinks first; dark before light, for print."""
_STATE: Mapping[str, _Style] = {
    "free": {"fill": _PALE, "stroke": "#1a7f37", "stroke_width": 2},
    "held": {"fill": "#1f4e8c", "stroke": "#12325c", "stroke_width": 2},
    "unhealthy": {"fill": "url(#hatch)", "stroke": "#b3261e", "stroke_width": 2},
    "left out": {"fill": "#d0d7de", "stroke": "#57606a", "stroke_width": 2},
}
"""White, dark and hatched differ even without colors."""
_NODE: _Style = {"fill": "#f3f5f8", "stroke": "#c3cad3"}
_SWITCH: _Style = {"fill": "#e3e8ee", "stroke": "#9aa5b1"}
_BETWEEN: _Style = {"stroke": "#8c959f", "stroke_width": 1.5}
"""The line that joins NUMA nodes."""


def svg(page: dict[str, Any]) -> str:
    """The picture as one self-contained file: it needs no script, font or other file."""
    floor = plan(page, _TOP, _STATES + _ENTRY)
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "font-family": _FONTS})
    name = f"GPUs of {page['node'] or 'this node'}"
    _add(root, "title").text = _printable(name)
    states, kinds = Counter(map(state, page["gpus"])), Counter(link["type"] for _, _, link in pairs(page))
    words = [
        *(f"{count} {word}" for word, count in states.items()),
        *(f"{n} pairs {kind}" for kind, n in kinds.items()),
    ]
    _add(root, "desc").text = _printable(", ".join((models(page["gpus"]) or "no GPUs", *words)))
    tilt = {"patternUnits": "userSpaceOnUse", "patternTransform": "rotate(45)"}
    hatch = _add(_add(root, "defs"), "pattern", id="hatch", width=7, height=7, **tilt)
    _add(hatch, "rect", width=7, height=7, fill=_PALE)
    _add(hatch, "rect", width=3, height=7, fill="#b3261e")
    ground = _add(root, "rect", fill=_PALE)
    content = models(page["gpus"]).replace(" x ", " × ") or "no GPUs"
    room = floor.width - 2 * MARGIN
    _text(root, (MARGIN, 46), _cut(name, room, 24 * _BOLD), 24, font_weight=600)
    _text(root, (MARGIN, 71), _cut(content, room, 14), 14)
    _draw_frames(root, page, floor)
    _draw_links(root, page, floor)
    for i, gpu in enumerate(page["gpus"]):
        _draw_gpu(root, gpu, floor.spots[i])
    height = _draw_legend(root, page, floor) + MARGIN / 2
    for element in (root, ground):
        element.attrib |= {"width": f"{floor.width:g}", "height": f"{height:g}"}
    root.set("viewBox", f"0 0 {floor.width:g} {height:g}")
    indent(root)
    return tostring(root, encoding="unicode") + "\n"


def _draw_frames(root: Element, page: dict[str, Any], floor: Plan) -> None:
    height = floor.bottom - floor.top
    for node in floor.nodes:
        right, y = node.x + node.width - 16, floor.top + 23
        _add(root, "rect", class_="numa", x=node.x, y=floor.top, width=node.width, height=height, rx=12, **_NODE)
        _text(root, (node.x + 16, y), node.name, 13, font_weight=600, fill=_QUIET)
        if node.inside:
            _text(root, (right, y), node.inside, 12, text_anchor="end", fill=_QUIET)
    for one, other in pairwise(floor.nodes):
        if between := by_pcie(page, product(one.members, other.members)):
            x, y = one.x + one.width, floor.top + 30
            _add(root, "path", class_="pcie", d=f"M{x:g} {y:g}H{other.x:g}", **_BETWEEN)
            _text(root, ((x + other.x) / 2, y - 7), between[-1], 12, text_anchor="middle", fill=_QUIET)
    for switch in floor.switches:
        y = floor.top + HEAD
        height = floor.bottom - y - INNER_PAD + 4
        right = switch.x + switch.width - INNER_PAD
        _add(root, "rect", class_="switch", x=switch.x, y=y, width=switch.width, height=height, rx=8, **_SWITCH)
        _text(root, (switch.x + INNER_PAD, y + 22), switch.name, 12, fill=_QUIET)
        _text(root, (right, y + 22), switch.inside, 12, text_anchor="end", fill=_QUIET)


def _draw_links(root: Element, page: dict[str, Any], floor: Plan) -> None:
    """NVLinks begin in the middles of GPUs, which cover them; a spoke that passes an NVSwitch does so above it."""
    strokes = _strokes(page)
    for (i, j), count in sorted(floor.direct.items(), key=lambda item: item[1]):
        names = " to ".join(f"GPU {page['gpus'][k]['index']}" for k in (i, j))
        line = _add(root, "path", class_="nvlink", fill="none", d=way(floor.spots, (i, j)), **strokes[count])
        _add(line, "title").text = f"{names}: NV{count}, {gbps(page['links'][i][j]['gbps'])} GB/s each way"
    bars = [floor.bar + k * (BAR + BAR_GAP) for k in range(len(floor.fabrics))]
    for fabric, y in zip(floor.fabrics, bars, strict=True):
        left, *_, right = sorted(floor.spots[i].x for i in fabric)
        bar = {"x": left - WIDTH / 2, "y": y - BAR / 2, "width": right - left + WIDTH, "height": BAR}
        _add(root, "rect", class_="nvswitch", rx=6, fill="#3d444d", **bar)
        _text(root, ((left + right) / 2, y + 5), "NVSwitch", 14, font_weight=600, text_anchor="middle", fill=_PALE)
    for i, y in ((i, y) for fabric, y in zip(floor.fabrics, bars, strict=True) for i in fabric):
        count = max(nvlinks(link) for link in page["links"][i] if link and link["switched"])
        spot = floor.spots[i]
        edge = y + BAR / 2 if y < spot.y else y - BAR / 2
        _add(root, "path", class_="spoke", d=f"M{spot.x:g} {spot.y:g}V{edge:g}", **strokes[count])


def _strokes(page: dict[str, Any]) -> dict[int, _Style]:
    """Color and width of a line by its number of NVLinks; the width is in proportion."""
    counts = sorted({nvlinks(link) for _, _, link in pairs(page)} - {0}, reverse=True)
    unit = min(3, 9 / counts[0]) if counts else 0
    return {
        count: {"stroke": _BY_COUNT[min(rank, len(_BY_COUNT) - 1)], "stroke_width": round(count * unit, 2)}
        for rank, count in enumerate(counts)
    }


def _draw_gpu(root: Element, gpu: dict[str, Any], spot: Spot) -> None:
    kind = state(gpu)
    ink, room = _PALE if kind == "held" else _INK, WIDTH - 28
    x, right, y = spot.x - WIDTH / 2, spot.x + WIDTH / 2 - 14, spot.y - HEIGHT / 2
    box = _add(root, "g", class_=f"gpu {kind}")
    facts = [f"GPU {gpu['index']}, {kind}", gpu["model"], gpu["uuid"], gpu["pci_bus_id"], *gpu["holders"]]
    _add(box, "title").text = _printable("\n".join(facts))
    _add(box, "rect", x=x, y=y, width=WIDTH, height=HEIGHT, rx=8, **_STATE[kind])
    if kind == "unhealthy":
        _add(box, "rect", x=x + 7, y=y + 7, width=WIDTH - 14, height=HEIGHT - 14, rx=4, fill=_PALE)
    x += 14
    _text(box, (x, y + 27), f"GPU {gpu['index']}", 16, font_weight=700, fill=ink)
    _text(box, (right, y + 26), kind.upper(), 10.5, font_weight=700, text_anchor="end", fill=ink)
    model = gpu["model"].removeprefix("NVIDIA ").removeprefix("Tesla ")
    _text(box, (x, y + 47), _cut(model, room, 12), 12, fill=ink)
    if gpu["holders"]:
        more = f" +{len(gpu['holders']) - 1}" if len(gpu["holders"]) > 1 else ""
        pod = gpu["holders"][0].partition("[")[0].rpartition("/")[2]
        _text(box, (x, y + 66), _cut(pod, room - _length(more, 12), 12, keep=6) + more, 12, fill=ink)


def _draw_legend(root: Element, page: dict[str, Any], floor: Plan) -> float:
    """Draw the meaning of fills and lines below the box; returns the height where the legend ends."""
    states = Counter(state(gpu) for gpu in page["gpus"])
    kinds = [kind for kind in _STATE if states[kind]]
    links = _legend(page)
    columns = int((floor.width - 2 * MARGIN - _STATES) // _ENTRY)
    x, top = MARGIN, floor.bottom + 58
    if kinds:
        _text(root, (x, top - 22), "GPUs", 12, fill=_QUIET)
    for k, kind in enumerate(kinds):
        y = top + k * _LINE
        _add(root, "rect", class_="key", x=x, y=y - 9, width=30, height=18, rx=4, **_STATE[kind])
        _text(root, (x + 42, y + 5), f"{states[kind]} {kind}", 13)
    if links:
        _text(root, (x + _STATES, top - 22), "Links between two GPUs, bandwidth each way", 12, fill=_QUIET)
    lines = max(len(kinds), ceil(len(links) / columns))
    for k, (name, speed, meaning, style) in enumerate(links):
        x, y = MARGIN + _STATES + k // lines * _ENTRY, top + k % lines * _LINE
        if "fill" in style:
            _add(root, "rect", class_="key", x=x, y=y - 9, width=30, height=18, rx=4, **style)
        else:
            _add(root, "path", class_="key", d=f"M{x:g} {y:g}h30", **style)
        _text(root, (x + 42, y + 5), name, 13, font_weight=600)
        _text(root, (x + 96, y + 5), speed, 13)
        _text(root, (x + 110 + max(_length(row[1], 13) for row in links), y + 5), meaning, 13, fill=_QUIET)
    return top + lines * _LINE


def _legend(page: dict[str, Any]) -> list[tuple[str, str, str, _Style]]:
    """The types of links in the page, fastest first: name, bandwidth, meaning, and style of the line."""
    speeds: dict[tuple[int, bool, str], list[float]] = defaultdict(list)
    for _, _, link in pairs(page):
        speeds[nvlinks(link), link["switched"], link["type"]].append(link["gbps"])
    strokes, rows = _strokes(page), []
    nvlink = sorted((found for found in speeds if found[0]), reverse=True)
    pcie = [(0, False, name) for name in MEANING if (0, False, name) in speeds]
    for found in nvlink + pcie:
        count, switched, name = found
        speed = "–".join(gbps(value) for value in sorted({min(speeds[found]), max(speeds[found])}))
        over = f"over {count} NVLink{'s' if count > 1 else ''}{' and NVSwitch' if switched else ''}"
        style = strokes[count] if count else {"PIX": _SWITCH, "SYS": _BETWEEN}.get(name, _NODE)
        rows.append((name, f"{speed} GB/s", MEANING.get(name, over), style))
    return rows


def _add(parent: Element, tag: str, **attributes: str | float) -> Element:
    """An element; of the attributes' names, `class_` is ``class`` and `stroke_width` is ``stroke-width``."""
    return SubElement(
        parent,
        tag,
        {
            name.rstrip("_").replace("_", "-"): value if isinstance(value, str) else f"{value:g}"
            for name, value in attributes.items()
        },
    )


def _text(parent: Element, at: tuple[float, float], words: str, size: float, **style: str | float) -> None:
    everywhere: _Style = {"x": at[0], "y": at[1], "font_size": size, "fill": _INK}
    _add(parent, "text", **{**everywhere, **style}).text = _printable(words)


def _printable(words: str) -> str:
    """Replace characters that XML cannot hold or that turn the direction of text; lines stay."""
    return "\n".join(map(printable, words.split("\n")))


def _length(words: str, size: float) -> float:
    """The approximate width of a text in any font, rather too large than too small."""
    return sum(size if char in "MWmw@%" or east_asian_width(char) in "WF" else size * 0.6 for char in words)


def _cut(words: str, room: float, size: float, keep: int = 0) -> str:
    """Shorten a text to the available width; it keeps the last `keep` characters."""
    if _length(words, size) <= room:
        return words
    end = f"…{words[len(words) - keep :]}"
    most = max(k for k in range(len(words)) if _length(words[:k] + end, size) <= room or not k)
    return words[:most] + end
