"""The picture of the box: one shape a GPU, one line a pair, nothing outside, nothing on top of anything else."""

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest

from gpuagent.pages import topology_picture
from tests.unit.pages import topology_pages as pages

PAGES = {
    "dgx1": pages.dgx1(),
    "dgx1 in one node": pages.dgx1_in_one_node(),
    "switched 8": pages.switched(),
    "switched 16": pages.switched(16),
    "switched 2": pages.switched(2),
    "thin link": pages.thin_link(),
    "two fabrics": pages.two_fabrics(),
    "two bridges": pages.two_bridges(),
    "two bridges in one node": pages.two_bridges(1),
    "pcie 16": pages.pcie(),
    "mixed": pages.mixed(),
    "ring of three": pages.ring_of_three(),
    "one": pages.one(),
    "empty": pages.empty(),
    "hostile": pages.hostile(),
}
every_box = pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
SVG = "{http://www.w3.org/2000/svg}"
Box = tuple[float, float, float, float]


def draw(page: dict[str, Any]) -> Element:
    return fromstring(topology_picture.svg(page))


def by_class(root: Element, name: str) -> list[Element]:
    return [element for element in root.iter() if name in element.get("class", "").split()]


def rect(element: Element) -> Box:
    x, y, width, height = (float(element.get(name, "0")) for name in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


def gpu_boxes(root: Element) -> list[Box]:
    return [rect(gpu.find(f"{SVG}rect")) for gpu in by_class(root, "gpu")]


def text_box(element: Element) -> Box:
    """About the room a text takes."""
    size, x, y = (float(element.get(name, "0")) for name in ("font-size", "x", "y"))
    width = len(element.text or "") * size * 0.6
    left = x - {"start": 0, "middle": width / 2, "end": width}[element.get("text-anchor", "start")]
    return left, y - size * 0.75, left + width, y + size * 0.25


def path_points(element: Element) -> list[tuple[float, float]]:
    """The absolute points of a path; handles of curves are outside the curve."""
    points: list[tuple[float, float]] = []
    for command, numbers in re.findall(r"([MLCHVh])([^MLCHVh]*)", element.get("d", "")):
        values = [float(number) for number in numbers.split()]
        if command in "HVh":
            x, y = points[-1]
            values = {"H": [values[0], y], "V": [x, values[0]], "h": [x + values[0], y]}[command]
        points += zip(values[::2], values[1::2], strict=True)
    return points


def curve_points(element: Element) -> list[tuple[float, float]]:
    points = path_points(element)
    if "C" not in element.get("d", ""):
        return points
    places = [n / 20 for n in range(21)]
    weights = [((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3) for t in places]
    return [tuple(sum(w * p[axis] for w, p in zip(ws, points, strict=True)) for axis in (0, 1)) for ws in weights]


def overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def contains(box: Box, point: tuple[float, float]) -> bool:
    return box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]


def drawn(root: Element) -> Iterator[Box]:
    """The room each thing takes, the pattern aside."""
    for element in root.iter():
        if element.tag == f"{SVG}rect" and (element.get("rx") or element.get("x")):
            yield rect(element)
        elif element.tag == f"{SVG}text":
            yield text_box(element)
        elif element.tag == f"{SVG}path":
            xs, ys = zip(*curve_points(element), strict=True)
            yield min(xs), min(ys), max(xs), max(ys)


@every_box
def test_every_gpu_is_one_shape_that_says_its_state(page: dict[str, Any]) -> None:
    titles = []
    for shape in by_class(draw(page), "gpu"):
        name, state, *_ = (text.text for text in shape.iter(f"{SVG}text"))
        assert shape.get("class") == f"gpu {state.lower()}"
        titles.append((name, state))
    states = {
        gpu["index"]: "UNHEALTHY" if gpu["health"] != "Healthy" else "HELD" if gpu["holders"] else "FREE"
        for gpu in page["gpus"]
    }
    assert titles == [(f"GPU {index}", state) for index, state in states.items()]


@every_box
def test_nothing_is_outside(page: dict[str, Any]) -> None:
    root = draw(page)
    left, top, right, bottom = map(float, root.get("viewBox", "").split())
    assert (root.get("width"), root.get("height")) == (f"{right:g}", f"{bottom:g}")
    for box in drawn(root):
        assert left <= box[0] <= box[2] <= right, box
        assert top <= box[1] <= box[3] <= bottom, box


@every_box
def test_no_gpus_and_no_texts_overlap(page: dict[str, Any]) -> None:
    root = draw(page)
    assert not any(overlap(one, other) for one, other in combinations(gpu_boxes(root), 2))
    texts = list(root.iter(f"{SVG}text"))
    for one, other in combinations(texts, 2):
        assert not overlap(text_box(one), text_box(other)), (one.text, other.text)


@every_box
def test_no_line_leads_behind_a_gpu_that_it_does_not_join_nor_through_a_text(page: dict[str, Any]) -> None:
    root = draw(page)
    gpus = gpu_boxes(root)
    texts = [text_box(text) for text in root.iter(f"{SVG}text")]
    texts = [text for text in texts if not any(overlap(text, gpu) for gpu in gpus)]
    for line in by_class(root, "nvlink"):
        points = curve_points(line)
        if len(points) == 2:
            (x0, y0), (x1, y1) = points
            points = [(x0 + (x1 - x0) * n / 200, y0 + (y1 - y0) * n / 200) for n in range(201)]
        met = [gpu for gpu in gpus if any(contains(gpu, point) for point in points)]
        assert len(met) == 2
        assert all(contains(gpu, points[0]) or contains(gpu, points[-1]) for gpu in met)
        assert not any(contains(text, point) for text in texts for point in points)


@every_box
def test_is_the_same_again_and_needs_nothing_else(page: dict[str, Any]) -> None:
    text = topology_picture.svg(page)
    assert text == topology_picture.svg(page)
    root = fromstring(text)
    assert not [
        e for e in root.iter() if e.tag.removeprefix(SVG) in {"script", "image", "use", "foreignObject", "style"}
    ]
    assert not [name for e in root.iter() for name in e.attrib if "href" in name or name.startswith("on")]
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {"#hatch"}


@every_box
def test_every_pair_that_nvlinks_join_directly_has_one_line(page: dict[str, Any]) -> None:
    names = [line.findtext(f"{SVG}title") for line in by_class(draw(page), "nvlink")]
    wanted = [
        f"GPU {page['gpus'][i]['index']} to GPU {page['gpus'][j]['index']}: {link['type']}, {link['gbps']:g} GB/s each way"
        for i, row in enumerate(page["links"])
        for j, link in enumerate(row)
        if i < j and link["type"].startswith("NV") and not link["switched"]
    ]
    assert sorted(names) == sorted(wanted)


def test_a_line_is_as_wide_as_it_has_nvlinks_and_coloured_by_their_number() -> None:
    looks = {
        line.findtext(f"{SVG}title").split(",")[0].split(": ")[1]: (float(line.get("stroke-width")), line.get("stroke"))
        for line in by_class(draw(pages.dgx1()), "nvlink")
    }
    assert looks["NV2"][0] == 2 * looks["NV1"][0]
    assert looks["NV2"][1] != looks["NV1"][1]


def test_links_of_a_quad_are_straight_and_most_between_the_quads_too() -> None:
    curved = [line for line in by_class(draw(pages.dgx1()), "nvlink") if "C" in line.get("d")]
    assert sorted(line.findtext(f"{SVG}title")[:14] for line in curved) == ["GPU 2 to GPU 6", "GPU 3 to GPU 7"]


@pytest.mark.parametrize("count", [2, 8, 16])
def test_switched_links_are_a_spoke_for_each_gpu(count: int) -> None:
    root = draw(pages.switched(count))
    assert len(by_class(root, "spoke")) == count
    assert not by_class(root, "nvlink")
    (bar,) = map(rect, by_class(root, "nvswitch"))
    for spoke in by_class(root, "spoke"):
        x, y = path_points(spoke)[-1]
        assert bar[0] < x < bar[2]
        assert y in {bar[1], bar[3]}
    assert not any(overlap(bar, box) for box in gpu_boxes(root))


def test_a_gpu_with_fewer_links_to_the_switches_has_a_thinner_spoke_and_one_with_none_has_none() -> None:
    spokes = by_class(draw(pages.thin_link()), "spoke")
    widths = sorted(float(spoke.get("stroke-width")) for spoke in spokes)
    assert len(widths) == 3
    assert widths[0] < widths[1] == widths[2]


def test_each_fabric_has_its_own_switch() -> None:
    root = draw(pages.two_fabrics())
    assert len(by_class(root, "nvswitch")) == 2
    bars = list(map(rect, by_class(root, "nvswitch")))
    assert not overlap(*bars)
    ends = [path_points(spoke)[-1][1] for spoke in by_class(root, "spoke")]
    assert [[bar[1] <= y <= bar[3] for bar in bars] for y in ends] == [[True, False]] * 4 + [[False, True]] * 4


def test_numa_nodes_and_pcie_switches_are_frames_around_their_gpus() -> None:
    root = draw(pages.pcie())
    nodes, switches = (list(map(rect, by_class(root, name))) for name in ("numa", "switch"))
    boxes = gpu_boxes(root)
    for frames, each in ((nodes, 8), (switches, 4)):
        for n, frame in enumerate(frames):
            inside = [i for i, box in enumerate(boxes) if overlap(frame, box)]
            assert inside == list(range(n * each, n * each + each))
            assert all(
                frame[0] < boxes[i][0] and boxes[i][2] < frame[2] and frame[1] < boxes[i][1] and boxes[i][3] < frame[3]
                for i in inside
            )
    assert [len(nodes), len(switches)] == [2, 4]
    assert len(by_class(root, "pcie")) == 1


def test_the_numa_node_of_a_gpu_may_be_unknown() -> None:
    texts = [text.text for text in draw(pages.mixed()).iter(f"{SVG}text")]
    assert [text for text in texts if "NUMA node" in text][:3] == ["NUMA node 0", "NUMA node 1", "NUMA node not known"]


def test_says_whose_gpus_they_are_and_how_many() -> None:
    root = draw(pages.mixed())
    assert root.findtext(f"{SVG}title") == "GPUs of n1"
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts[:2] == ["GPUs of n1", "4 × NVIDIA A40, 4 × Tesla T4"]


def test_the_legend_has_what_is_there_the_most_nvlinks_first() -> None:
    texts = [text.text for text in draw(pages.dgx1()).iter(f"{SVG}text")]
    assert texts[texts.index("5 free") :] == [
        *("5 free", "2 held", "1 unhealthy", "Links between two GPUs, bandwidth each way"),
        *("NV2", "50 GB/s", "over 2 NVLinks"),
        *("NV1", "25 GB/s", "over 1 NVLink"),
        *("SYS", "7.88 GB/s", "between NUMA nodes, from CPU to CPU"),
    ]


def test_the_legend_has_the_slowest_and_the_fastest_of_a_type() -> None:
    page = pages.page([pages.gpu(i) for i in range(3)], lambda i, j: pages.link("PHB", 10.0 + j))
    assert "11–12 GB/s" in [text.text for text in draw(page).iter(f"{SVG}text")]


def test_a_gpu_names_its_first_pod_and_counts_the_others() -> None:
    shape = by_class(draw(pages.dgx1()), "held")[1]
    assert [text.text for text in shape.iter(f"{SVG}text")][-1] == "train-0 +1"
    assert shape.findtext(f"{SVG}title").splitlines()[-2:] == ["ml/train-0[main]", "ml/watch[main]"]


def test_hostile_names_are_text_and_lose_what_xml_cannot_hold() -> None:
    text = topology_picture.svg(pages.hostile())
    assert "<script" not in text
    text.encode()
    (model, *_) = [t.text for t in fromstring(text).iter(f"{SVG}text") if t.text.startswith("</text>")]
    assert model.startswith("</text><script>")
    assert not set("\x00\x1b\ud800\u202e\ufffe") & set(text)
