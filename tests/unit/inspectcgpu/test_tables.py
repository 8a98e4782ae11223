"""Golden tables: the documented ones byte for byte, and those that no document shows."""

import json
import textwrap

import pytest

from gpuagent.domain.pods.annotations import LIMIT_ANNOTATION, LIMIT_STATUS_ANNOTATION
from gpuagent.domain.sharing.units import MemoryUnit
from inspectcgpu.fetch.cluster import agents_wanted
from inspectcgpu.read.agent_page import AgentView, SeenGpu, read_page
from inspectcgpu.read.configmaps import GpuConfigMap
from inspectcgpu.read.usage import Usage
from inspectcgpu.show.details import details
from inspectcgpu.show.documents import document
from inspectcgpu.show.narrow import fits, narrow
from inspectcgpu.show.summary import summary
from tests.unit.inspectcgpu.sample_cluster import V2, V2_CORE, node, on, pod, report

DOCUMENTED = "cn-shanghai.192.0.2.109"


def shown(found, **how):
    return "\n".join(summary(found, **how))


def is_like(text: str, wanted: str) -> None:
    """Dashes and blanks at the ends of lines apart, of which a document loses count."""

    def lines(of: str) -> list[str]:
        return ["---" if set(line) == {"-"} else line.rstrip() for line in of.strip("\n").splitlines()]

    assert lines(text) == lines(textwrap.dedent(wanted))


def test_the_documented_node_without_pods_byte_for_byte():
    name = "cn-shanghai.192.168.6.104"
    found = report([node(name, gpus=1, mib=15109, mem=15, address="192.168.6.104")])
    assert shown(found) == (
        "NAME                       IPADDRESS      GPU0(Allocated/Total)  GPU Memory(GiB)\n"
        "cn-shanghai.192.168.6.104  192.168.6.104  0/15                   0/15\n"
        "----------------------------------------------------------------------\n"
        "Allocated/Total GPU Memory In Cluster:\n"
        "0/15 (0%)"
    )


@pytest.mark.parametrize(
    ("pods", "cells", "sums"),
    [
        ([("a", 0, 15), ("b", 1, 9)], "15/15  9/15   0/15   0/15   24/60", "24/60 (40%)"),
        ([("a", 0, 4), ("b", 1, 4), ("c", 3, 4)], "4/15   4/15   0/15   4/15   12/60", "12/60 (20%)"),
    ],
    ids=["binpack", "spread"],
)
def test_the_documented_node_with_pods(pods, cells, sums):
    pods = [on(name, gpu, units, DOCUMENTED) for name, gpu, units in pods]
    text = shown(report([node(DOCUMENTED, mem=60, address="192.0.2.109")], pods))
    head, line, dashes, title, last = text.splitlines()
    columns = [f"GPU{n}(Allocated/Total)" for n in range(4)]
    assert head.split("  ") == ["NAME", *[""] * 9, " IPADDRESS", "", *columns, "GPU Memory(GiB)"]
    assert line.split() == [DOCUMENTED, "192.0.2.109", *cells.split()]
    assert set(dashes) == {"-"}
    assert (title, last) == ("Allocated/Total GPU Memory In Cluster:", sums)
    # Every cell stands below its heading.
    assert [line[head.index(column) :].split()[0] for column in columns] == cells.split()[:4]


def test_nodes_with_different_numbers_of_gpus_and_pods_of_both_generations():
    v1 = {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "3", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
    nodes = [node("n1", gpus=1, mem=15), node("n2", gpus=2, mem=30, address=None)]
    found = report(
        nodes, [on("a", 0, 5), pod("b", "n2", v1, mem=3), pod("c", "n2", {V2: '{"0":{"0":2,"1":2}}'}, mem=4)]
    )
    is_like(
        shown(found),
        """
        NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)
        n1    10.0.0.1   5/15                   0/0                    5/15
        n2    unknown    2/15                   5/15                   7/30
        ---
        Allocated/Total GPU Memory In Cluster:
        12/45 (26%)
        """,
    )


def test_compute_has_its_columns_on_the_right():
    both = {V2: '{"0":{"1":6}}', V2_CORE: '{"0":{"1":80}}'}
    nodes = [node("n1", gpus=1, mem=15), node("n2", "core_mem", gpus=2, mem=30, core=200)]
    found = report(nodes, [on("a", 0, 5), pod("b", "n2", both, mem=6, core=80)])
    is_like(
        shown(found),
        """
        NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)  GPU0 Core(%)  GPU1 Core(%)  GPU Core(%)
        n1    10.0.0.1   5/15                   0/0                    5/15             -             -             -
        n2    10.0.0.1   0/15                   6/15                   6/30             0/100         80/100        80/200
        ---
        Allocated/Total GPU Memory In Cluster:
        11/45 (24%)
        Allocated/Total GPU Core In Cluster:
        80/200 (40%)
        """,
    )


def test_whole_gpus_have_a_table_of_their_own():
    configmaps = {"t1": GpuConfigMap("t1", {0: "Healthy", 1: "Healthy", 2: "Unhealthy"}, whole=True)}
    nodes = [node("t1", "topology", gpus=3, whole=3, allocatable={"aliyun.com/gpu": 2})]
    group = {"topology.kubernetes.io/gpu-group": "0", "topology.kubernetes.io/gpu-visible": "0,1"}
    found = report(nodes, [pod("a", "t1", group, whole=1)], configmaps=configmaps)
    is_like(
        shown(found),
        """
        NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU2(Allocated/Total)  GPUs(Allocated/Total)
        t1    10.0.0.1   1/1                    0/1                    0/1!                   1/2
        ---
        Allocated/Total GPUs In Cluster:
        1/2 (50%)

        Notes:
        - node t1: GPU 2 is unhealthy
        """,
    )


def test_gpus_above_100_gib_are_in_gib():
    found = report([node("h200", gpus=2, mib=143771, mem=280)], [on("a", 1, 70, "h200")])
    is_like(
        shown(found),
        """
        NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)
        h200  10.0.0.1   0/140                  70/140                 70/280
        ---
        Allocated/Total GPU Memory In Cluster:
        70/280 (25%)
        """,
    )


def test_a_unit_of_ones_own_and_clusters_that_mix_units_say_so():
    nodes = [node("n1", gpus=1, mem=15), node("n2", gpus=2, mib=81920, mem=640), node("n3", gpus=1, mib=None, mem=7)]
    text = shown(report(nodes, [on("a", 0, 5)]))
    is_like(
        text,
        """
        NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory
        n1    10.0.0.1   5/15                   0/0                    5/15 GiB
        n2    10.0.0.1   0/320                  0/320                  0/640 256MiB
        n3    10.0.0.1   0/7                    0/0                    0/7 ?
        ---
        Allocated/Total GPU Memory In Cluster:
        0/640 256MiB (0%)
        0/7 ? (0%)
        5/15 GiB (33%)

        Notes:
        - node n2: the unit 256MiB follows from the first GPU and is right if all GPUs are alike
        - node n3: the node has no label aliyun.accelerator/nvidia_mem, so the size of a unit is unknown
        - nodes count GPU memory in different units: 256MiB (1), ? (1), GiB (1)
        """,
    )


def test_a_pod_without_a_gpu_is_pending_and_says_why():
    nodes = [node("n1", gpus=2, mem=30)]
    pods = [on("a", 0, 5), pod("b", mem=4), pod("c", "", mem=9, phase="Pending")]
    is_like(
        shown(report(nodes, pods)),
        """
        NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  PENDING(Allocated)  GPU Memory(GiB)
        n1    10.0.0.1   5/15                   0/15                   4                   9/30
        ---
        Allocated/Total GPU Memory In Cluster:
        9/30 (30%)

        Pods without a GPU:
        NAMESPACE  NAME  NODE  ASKS       WHY
        default    b     n1    4 gpu-mem  not annotated by a scheduler
        default    c     -     9 gpu-mem  not scheduled yet
        """,
    )


def mixed_view():
    sizes = {0: 16384, 3: 24576}
    gpus = {n: SeenGpu(n, "T4", mib, True, "", {"aliyun.com/gpu-mem": mib // 1024}) for n, mib in sizes.items()}
    return AgentView(MemoryUnit(1024), gpus, {pod("b", mem=4).name: {"aliyun.com/gpu-mem": {3: 4}}})


def test_gpus_of_different_sizes_are_right_where_the_agent_is_seen_and_unknown_where_not():
    nodes, pods = [node("n1", gpus=2, mib=16384, mem=40)], [on("a", 0, 5), pod("b", mem=4)]
    text = shown(report(nodes, pods, views={"n1": mixed_view()}))
    assert text.splitlines()[1].split() == ["n1", "10.0.0.1", "5/16", "0/0", "0/0", "4/24", "9/40"]
    nodes = [node("n1", gpus=2, mib=16384, mem=39)]
    text = shown(report(nodes, [on("a", 0, 5)]))
    assert text.splitlines()[1].split() == ["n1", "10.0.0.1", "5/?", "0/?", "5/39"]
    assert "39 units on 2 GPUs, of which the first has 16384 MiB: the GPUs are not alike" in text


def test_details_are_those_of_the_open_tool_and_what_is_used():
    nodes = [node("n1", gpus=2, mem=30)]
    pods = [on("a", 0, 5), pod("b", "n1", {V2: '{"0":{"0":2,"1":2}}'}, mem=4), pod("c", mem=3)]
    usage = {pods[0].name: Usage(3 * 2**30, 5 * 2**30), pods[1].name: Usage(2**29, None)}
    is_like(
        "\n".join(details(report(nodes, pods, usage=usage))),
        """
        NAME:       n1
        IPADDRESS:  10.0.0.1

        NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  Pending(Allocated)  USED/LIMIT(GiB)
        a            default    5                0                0                   3.0/5.0
        b            default    2                2                0                   0.5/-
        c            default    0                0                3                   -
        Allocated :  12 (40%)
        Total :      30
        ---


        Allocated/Total GPU Memory In Cluster:  12/30 (40%)

        Pods without a GPU:
        NAMESPACE  NAME  NODE  ASKS       WHY
        default    c     n1    3 gpu-mem  not annotated by a scheduler
        """,
    )


def test_details_of_compute_whole_gpus_and_links():
    both = {V2: '{"0":{"0":6}}', V2_CORE: '{"0":{"0":80}}'}
    configmaps = {
        "t1": GpuConfigMap("t1", {0: "Healthy", 1: "Healthy"}, whole=True, links=(("N/A", "NV2"), ("NV2", "N/A")))
    }
    nodes = [node("c1", "core_mem", gpus=1, mem=15, core=100), node("t1", "topology", gpus=2, whole=2)]
    pods = [
        pod("a", "c1", both, mem=6, core=80),
        pod("b", "t1", {"topology.kubernetes.io/gpu-group": "1"}, whole=1),
    ]
    text = "\n".join(details(report(nodes, pods, configmaps=configmaps, usage_problem="no agent"), wide=True))
    is_like(
        text,
        """
        NAME:       c1
        IPADDRESS:  10.0.0.1
        MODE:       core_mem
        UNIT:       GiB
        MODEL:      Tesla-T4

        NAME              NAMESPACE  GPU0(Allocated)  GPU0 Core(%)  USED/LIMIT(GiB)
        a                 default    6                80            -
        Allocated :       6 (40%)
        Total :           15
        Allocated Core :  80 (80%)
        Total Core :      100
        ---

        NAME:       t1
        IPADDRESS:  10.0.0.1
        MODE:       topology
        MODEL:      Tesla-T4

        NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  USED/LIMIT(GiB)
        b            default    0                1                -
        Allocated :  1 (50%)
        Total :      2

        Links:
              GPU0  GPU1
        GPU0  N/A   NV2
        GPU1  NV2   N/A
        ---


        Allocated/Total GPU Memory In Cluster:  6/15 (40%)
        Allocated/Total GPU Core In Cluster:  80/100 (80%)
        Allocated/Total GPUs In Cluster:  1/2 (50%)

        USED/LIMIT is not known: no agent
        """,
    )


def test_wide_has_more_columns():
    found = report([node("n1", gpus=1, mem=15, labels={"ack.node.gpu.placement": "spread"})], [on("a", 0, 1)])
    head, line, *_ = shown(found, wide=True).splitlines()
    assert head.split()[-5:] == ["MODE", "PLACEMENT", "UNIT", "MODEL", "PODS"]
    assert line.split()[-5:] == ["share", "spread", "GiB", "Tesla-T4", "1"]


def test_a_node_in_the_middle_of_a_switch_shows_both_resources_apart():
    nodes = [node("n1", gpus=2, mem=30), node("n2", "topology", gpus=2, whole=1)]
    pods = [on("a", 0, 4), on("b", 0, 4, "n2"), pod("c", "n2", {"topology.kubernetes.io/gpu-group": "1"}, whole=1)]
    assert agents_wanted(nodes, pods) == {"n2"}
    assert agents_wanted([node("n2", "topology", gpus=2, whole=1)], []) == {"n2"}
    assert agents_wanted([node("n3", "core_mem", gpus=2, mem=30, core=100)], []) == {"n3"}
    found = report(nodes, pods)
    lines = summary(found)
    assert lines[0].endswith("GPU Memory(GiB)")
    assert lines[1].split()[2:] == ["4/15", "0/15", "4/30"]
    assert lines[2].split()[2:] == ["4/0", "0/0", "4/0", "?"]
    assert not any("different units" in line for line in lines)
    shown = details(found)
    assert next(line for line in shown if "GPU0 Whole" in line).split()[2:] == [
        *("GPU0", "Memory(Allocated)", "GPU1", "Memory(Allocated)"),
        *("GPU0", "Whole(Allocated)", "GPU1", "Whole(Allocated)", "USED/LIMIT(GiB)"),
    ]
    assert "Allocated Whole :   1 (100%)" in shown
    assert "Allocated Memory :  4 (0%)" in shown


def of_eight_gpus():
    annotations = {V2: '{"0":{"1":6}}', V2_CORE: '{"0":{"1":80}}'}
    group = {"topology.kubernetes.io/gpu-group": "0", "topology.kubernetes.io/gpu-visible": "0,1"}
    nodes = [
        node("cn-shanghai.192.0.2.109", "core_mem", gpus=8, mem=120, core=800, address="192.0.2.109"),
        node("t1", "topology", gpus=3, whole=3, allocatable={"aliyun.com/gpu": 2}),
    ]
    pods = [
        pod("embed-7d4b9c6f5-x2x9k", "cn-shanghai.192.0.2.109", annotations, mem=6, core=80),
        pod("train", "t1", group, whole=1),
        pod("waits", "t1", whole=1),
    ]
    configmaps = {"t1": GpuConfigMap("t1", {0: "Healthy", 1: "Healthy", 2: "Unhealthy"}, whole=True)}
    return report(nodes, pods, configmaps=configmaps)


def test_a_narrow_terminal_gets_lines_that_fit_with_units_in_every_cell():
    found = of_eight_gpus()
    assert not fits(summary(found), 80)
    text = "\n".join(narrow(found, 80, pods=False, colour=False))
    assert text.startswith(
        """cn-shanghai.192.0.2.109 (192.0.2.109)   6/120 GiB, 80/800 %
  GPU0 0/15 GiB, 0/100 %    GPU1 6/15 GiB, 80/100 %   GPU2 0/15 GiB, 0/100 %
  GPU3 0/15 GiB, 0/100 %    GPU4 0/15 GiB, 0/100 %    GPU5 0/15 GiB, 0/100 %
  GPU6 0/15 GiB, 0/100 %    GPU7 0/15 GiB, 0/100 %

t1 (10.0.0.1)   2/2 GPU
  GPU0 1/1 GPU     GPU1 0/1 GPU     GPU2 0/1 GPU !

Allocated/Total GPU Memory In Cluster: 6/120 (5%)
Allocated/Total GPU Core In Cluster: 80/800 (10%)
Allocated/Total GPUs In Cluster: 2/2 (100%)

Pods without a GPU:
- default/waits on t1, asks 1 gpu: """
    )
    assert fits(text.splitlines(), 80)
    ill = narrow(found, 80, pods=False, colour=True)
    assert any("\x1b[31mGPU2 0/1 GPU !\x1b[0m" in line for line in ill)


def test_details_for_a_narrow_terminal_have_the_pods_of_each_gpu():
    found = of_eight_gpus()
    lines = narrow(found, 80, pods=True, colour=False)
    at = lines.index("  GPU1 6/15 GiB, 80/100 %")
    assert lines[at + 1] == "    default/embed-7d4b9c6f5-x2x9k 6 GiB, 80 %"
    assert fits(lines, 80)


def resizing(name: str, wanted: str = "", answer: str = ""):
    texts = {V2: '{"0":{"1":8}}', LIMIT_ANNOTATION: wanted, LIMIT_STATUS_ANNOTATION: answer}
    return pod(name, "n1", {key: text for key, text in texts.items() if text}, mem=8)


REFUSAL = "Refused: GPU 1 has 2 units that no pod holds; in force: main=8"


def test_a_resize_shows_what_is_wanted_and_what_is_in_force():
    pods = [
        resizing("grown", "main=12", "InForce: main=12"),
        resizing("poor", "main=20", REFUSAL),
        resizing("early", "10"),
        resizing("as-before", "", "InForce: main=8"),
        on("usual", 0, 1),
    ]
    found = report([node(gpus=2, mem=30)], pods)
    lines = details(found)
    start = next(number for number, line in enumerate(lines) if line.startswith("RESIZED"))
    is_like(
        "\n".join(lines[start : start + 4]),
        """
        RESIZED  NAMESPACE  WANTED   IN FORCE  WHY NOT
        grown    default    main=12  main=12   -
        poor     default    main=20  main=8    GPU 1 has 2 units that no pod holds
        early    default    10       -         -
        """,
    )
    assert not any(line.startswith(("as-before", "usual")) for line in lines[start:])
    note = "- pod default/poor: its memory limit is not changed: GPU 1 has 2 units that no pod holds"
    assert note in lines
    assert note in shown(found).splitlines()
    text = "\n".join(narrow(found, 200, pods=True, colour=False))
    assert "default/grown 8 GiB, limited to main=12\n" in text
    assert "default/poor 8 GiB, limited to main=8, wants main=20\n" in text
    assert "default/early 8 GiB, wants 10\n" in text
    resizes = {one["name"]: one["resize"] for one in document(found)["nodes"][0]["pods"]}
    assert resizes["poor"] == {
        "wanted": "main=20",
        "inForce": "main=8",
        "refused": "GPU 1 has 2 units that no pod holds",
    }
    assert resizes["grown"] == {"wanted": "main=12", "inForce": "main=12", "refused": None}
    assert resizes["as-before"] is resizes["usual"] is None


def test_the_nodes_agent_says_better_what_is_in_force_than_the_pod_itself():
    """Anybody who may edit the pod can write its annotations."""
    gpus = {0: SeenGpu(0, "A10", 15360, True, "", {"aliyun.com/gpu-mem": 15})}
    page = json.dumps(
        {
            "memory_unit": "GiB",
            "gpus": [{"minor": 0, "memory_mib": 15360, "health": "Healthy", "units": {"aliyun.com/gpu-mem": 15}}],
            "resizes": [{"pod": "default/poor", "status": REFUSAL}, {"pod": "odd"}, 7],
        }
    )
    forged = [resizing("poor", "main=99", "InForce: main=99"), resizing("unseen", "main=99", "InForce: main=99")]
    seen = read_page(page)
    assert seen and seen.gpus.keys() == gpus.keys()
    by_agent = report([node(gpus=1, mem=15)], forged, views={"n1": seen}).nodes[0].pods
    assert [(one.resize.wanted, one.resize.in_force) for one in by_agent] == [("main=99", "main=8"), ("main=99", "")]
    older = AgentView(MemoryUnit(), gpus)
    by_annotation = report([node(gpus=1, mem=15)], forged, views={"n1": older}).nodes[0].pods
    assert [one.resize.in_force for one in by_annotation] == ["main=99", "main=99"]
