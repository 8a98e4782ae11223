"""The tables of the topology page."""

import pytest

from gpuagent.pages import topology_table
from tests.unit.pages import topology_pages as pages


def parts(page: dict[str, object]) -> list[str]:
    return topology_table.render(page).split("\n\n")


def test_a_dgx1_with_volta() -> None:
    best = [
        {"size": 1, "gpus": [0], "weakest_gbps": None, "total_gbps": 0.0},
        {"size": 4, "gpus": [0, 3, 7, 4], "weakest_gbps": 25.0, "total_gbps": 175.0},
    ]
    notes = ["GPU 0 and GPU 3 report 3 and 2 NVLinks between them; 2 are counted"]
    assert (
        topology_table.render(pages.dgx1(best=best, notes=notes))
        == """\
node n1   8 x Tesla V100-SXM2-16GB   gpuagent 0.3.0

      GPU0  GPU1  GPU2  GPU3  GPU4  GPU5  GPU6  GPU7  NUMA AFFINITY
GPU0  X     NV1   NV1   NV2   NV2   SYS   SYS   SYS   0
GPU1  NV1   X     NV2   NV1   SYS   NV2   SYS   SYS   0
GPU2  NV1   NV2   X     NV2   SYS   SYS   NV1   SYS   0
GPU3  NV2   NV1   NV2   X     SYS   SYS   SYS   NV1   0
GPU4  NV2   SYS   SYS   SYS   X     NV1   NV1   NV2   1
GPU5  SYS   NV2   SYS   SYS   NV1   X     NV2   NV1   1
GPU6  SYS   SYS   NV1   SYS   NV1   NV2   X     NV2   1
GPU7  SYS   SYS   SYS   NV1   NV2   NV1   NV2   X     1

X    the GPU itself
NV#  over # NVLinks, straight to the other GPU
SYS  between NUMA nodes, from CPU to CPU

GB/s each way between two GPUs:
      GPU0  GPU1  GPU2  GPU3  GPU4  GPU5  GPU6  GPU7
GPU0  X     25    25    50    50    7.88  7.88  7.88
GPU1  25    X     50    25    7.88  50    7.88  7.88
GPU2  25    50    X     50    7.88  7.88  25    7.88
GPU3  50    25    50    X     7.88  7.88  7.88  25
GPU4  50    7.88  7.88  7.88  X     25    25    50
GPU5  7.88  50    7.88  7.88  25    X     50    25
GPU6  7.88  7.88  25    7.88  25    50    X     50
GPU7  7.88  7.88  7.88  25    50    25    50    X

GPU   PCI BUS           MODEL                 STATE
GPU0  00000000:06:00.0  Tesla V100-SXM2-16GB  free
GPU1  00000000:07:00.0  Tesla V100-SXM2-16GB  held
      default/job-0[main]
GPU2  00000000:08:00.0  Tesla V100-SXM2-16GB  held
      ml/train-0[main]
      ml/watch[main]
GPU3  00000000:09:00.0  Tesla V100-SXM2-16GB  free
GPU4  00000000:0A:00.0  Tesla V100-SXM2-16GB  free
GPU5  00000000:0B:00.0  Tesla V100-SXM2-16GB  free
GPU6  00000000:0C:00.0  Tesla V100-SXM2-16GB  unhealthy
GPU7  00000000:0D:00.0  Tesla V100-SXM2-16GB  free

best sets of free GPUs, GB/s:
SIZE  WEAKEST LINK  TOTAL  GPUS AS A RING
1     -             -      0
4     25            175    0 3 7 4

! GPU 0 and GPU 3 report 3 and 2 NVLinks between them; 2 are counted"""
    )


def test_a_box_with_nvswitches() -> None:
    held = {"holders": ["default/job-0[main]"]}
    page = pages.switched(4)
    page["gpus"] = [{**gpu, **held} for gpu in page["gpus"]]
    assert (
        topology_table.render(page)
        == """\
node n1   4 x NVIDIA H100 80GB HBM3   gpuagent 0.3.0

      GPU0  GPU1  GPU2  GPU3  NUMA AFFINITY
GPU0  X     NV18  NV18  NV18  0
GPU1  NV18  X     NV18  NV18  0
GPU2  NV18  NV18  X     NV18  1
GPU3  NV18  NV18  NV18  X     1

X    the GPU itself
NV#  over # NVLinks of each GPU, through NVSwitches

GB/s each way between two GPUs:
      GPU0  GPU1  GPU2  GPU3
GPU0  X     450   450   450
GPU1  450   X     450   450
GPU2  450   450   X     450
GPU3  450   450   450   X

GPU   PCI BUS           MODEL                  STATE
GPU0  00000000:06:00.0  NVIDIA H100 80GB HBM3  held
      default/job-0[main]
GPU1  00000000:07:00.0  NVIDIA H100 80GB HBM3  held
      default/job-0[main]
GPU2  00000000:08:00.0  NVIDIA H100 80GB HBM3  held
      default/job-0[main]
GPU3  00000000:09:00.0  NVIDIA H100 80GB HBM3  held
      default/job-0[main]

no GPU is free to choose"""
    )


@pytest.mark.parametrize("page", [pages.switched(16), pages.pcie(16)])
def test_sixteen_gpus_fit_140_columns(page: dict[str, object]) -> None:
    assert max(map(len, topology_table.render(page).splitlines())) <= 140


@pytest.mark.parametrize(
    ("page", "types"),
    [
        (pages.pcie(), ["X", "PIX", "PHB", "SYS"]),
        (pages.two_bridges(), ["X", "NV#", "SYS"]),
        (pages.mixed(), ["X", "NV#", "PIX", "NODE", "SYS"]),
        (pages.one(), ["X"]),
    ],
)
def test_the_legend_has_the_types_that_appear_nearest_first(page: dict[str, object], types: list[str]) -> None:
    assert [line.split()[0] for line in parts(page)[2].splitlines()] == types


def test_rows_go_by_index_also_where_one_is_missing_and_an_unknown_numa_node_is_a_dash() -> None:
    matrix = parts(pages.mixed())[1].splitlines()
    assert [line.split()[0] for line in matrix[1:]] == [f"GPU{i}" for i in (0, 1, 2, 3, 5, 6, 7, 9)]
    assert [line.split()[-1] for line in matrix[1:]] == list("0000111-")


def test_an_unhealthy_gpu_may_be_held() -> None:
    page = pages.page([pages.gpu(0, health="Unhealthy", holders=["a/b[c]"])], pages.hybrid_cube_mesh)
    assert parts(page)[4].endswith("unhealthy, held\n      a/b[c]")


def test_each_holder_has_a_line_so_that_it_fits_80_columns() -> None:
    names = [f"default/embed-the-documents-7d4b9c6f5-x2x9{n}[main]" for n in range(4)]
    page = pages.page([pages.gpu(n, holders=names) for n in range(8)], pages.hybrid_cube_mesh)
    shown = parts(page)[4].splitlines()
    assert [line.strip() for line in shown[2:6]] == names
    assert max(map(len, shown)) <= 80


@pytest.mark.parametrize(("gbps", "shown"), [(50.0, "50"), (12.608, "12.61"), (31.5, "31.5"), (112.5, "112.5")])
def test_bandwidths_have_no_needless_zeros(gbps: float, shown: str) -> None:
    page = pages.page([pages.gpu(0), pages.gpu(1)], lambda *_: pages.link("PHB", gbps))
    assert parts(page)[3].splitlines()[-1].split() == ["GPU1", shown, "X"]


def test_models_are_counted_in_the_order_of_the_gpus() -> None:
    assert "   4 x NVIDIA A40, 4 x Tesla T4   " in parts(pages.mixed())[0]


@pytest.mark.parametrize(("node", "words"), [("n1", "node n1 has no GPUs"), ("", "this node has no GPUs")])
def test_an_empty_box_is_a_sentence(node: str, words: str) -> None:
    assert topology_table.render(pages.empty(node=node)) == words


def test_an_empty_box_keeps_its_notes() -> None:
    assert (
        topology_table.render(pages.empty(notes=["the driver is gone"]))
        == "node n1 has no GPUs\n\n! the driver is gone"
    )
