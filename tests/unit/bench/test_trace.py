"""The placement part of the benchmark: it reads the trace, never places more than fits, and repeats itself."""

import numpy as np
import pytest

from bench.result import Results
from bench.trace import placing
from bench.trace.cluster import Cluster
from bench.trace.placing import SET_UPS, Run, simulate
from bench.trace.product import CpuPods, Product
from bench.trace.published import BestFit, GpuPacking
from bench.trace.trace import Pod, Trace, read, variants, with_departures, without_departures
from gpuscheduler.core.policy.fleet import Demand
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.policy.named import NAMES, named

NODES = """sn,cpu_milli,memory_mib,gpu,model
n0,64000,262144,2,P100
n1,96000,393216,8,G2
n2,96000,393216,4,T4
"""
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
p0,12000,16384,1,1000,
p1,6000,12288,1,460,P100|T4
p2,4000,8192,0,0,
p3,40000,65536,4,1000,G2
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(NODES, encoding="utf-8")
    for variant in ("multi", "default"):
        (tmp_path / f"openb_pod_list_{variant}.csv").write_text(PODS, encoding="utf-8")
    return tmp_path


@pytest.fixture
def trace(folder):
    return read(folder, "default")


def test_the_folder_says_which_variants_there_are(folder):
    assert variants(folder) == ["default", "multi"]


def test_nodes_and_pods_are_those_of_the_files(trace):
    assert trace.nodes.gpus.tolist() == [2, 8, 4]
    assert trace.nodes.cores.tolist() == [64, 96, 96]
    assert list(trace.pods) == [
        Pod(Demand(1, 1.0, 12.0), 16384),
        Pod(Demand(1, 0.46, 6.0, frozenset({1, 2})), 12288),
        Pod(Demand(0, 0.0, 4.0), 8192),
        Pod(Demand(4, 1.0, 40.0, frozenset({0})), 65536),
    ]
    assert sum(trace.shares.values()) == 1


def test_pods_arrive_once_each_and_then_at_random_until_they_ask_for_enough(trace):
    pods = [one.pod for one in without_departures(trace, 1.3, np.random.default_rng(1))]
    assert set(pods[:4]) == set(trace.pods)
    asked = sum(pod.gpus for pod in pods)
    assert 1.3 * 14 <= asked < 1.3 * 14 + 4


def test_pods_that_depart_ask_for_the_load_on_average(trace):
    arrivals = with_departures(trace, 1.0, 2000.0, np.random.default_rng(1))
    gpu_time = sum(one.pod.gpus * one.lifetime for one in arrivals)
    assert gpu_time / 14 / 2000 == pytest.approx(1.0, rel=0.05)
    assert arrivals[-1].time == pytest.approx(2000, rel=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_pods_are_placed_while_they_fit_and_never_beyond(trace, name):
    mix = Mix()
    cluster = Cluster(trace.nodes, named(name, mix), mix, np.random.default_rng(0))
    whole = Pod(Demand(1, 1.0, 1.0), 1)
    placed = [cluster.place(whole) for _ in range(14)]
    assert len({(one.row, *one.gpus) for one in placed}) == 14
    assert cluster.place(Pod(Demand(1, 0.1), 1)) is None
    cluster.release(placed[3])
    again = cluster.place(whole)
    assert (again.row, again.gpus.tolist()) == (placed[3].row, placed[3].gpus.tolist())


def test_cores_memory_and_models_refuse_nodes(trace):
    mix = Mix()
    cluster = Cluster(trace.nodes, named("strand", mix), mix, np.random.default_rng(0))
    assert cluster.place(Pod(Demand(1, 0.1, 97.0), 1)) is None
    assert cluster.place(Pod(Demand(1, 0.1, 1.0), 400000)) is None
    assert cluster.place(Pod(Demand(4, 1.0, 1.0, frozenset({1})), 1)) is None
    assert cluster.place(Pod(Demand(4, 1.0, 1.0, frozenset({2})), 1)) is not None


@pytest.mark.parametrize("policy", ["Random", "FGD", *NAMES])
@pytest.mark.parametrize("departures", [False, True])
def test_a_run_repeats_itself(folder, policy, departures):
    run = Run(folder, "default", policy, 0, departures)
    assert simulate(run) == simulate(run)
    assert 0 < simulate(run).at_end <= 100


@pytest.mark.parametrize("set_up", SET_UPS)
@pytest.mark.parametrize("departures", [False, True])
def test_a_run_through_the_product_repeats_itself(folder, set_up, departures):
    run = Run(folder, "default", "strand", 0, departures, set_up)
    assert simulate(run) == simulate(run)
    assert 0 < simulate(run).at_end <= 100


@pytest.fixture
def product(trace):
    mix = Mix()
    return Product(trace.nodes, named("strand", mix), mix, np.random.default_rng(0), cpu_pods=CpuPods.BESIDE)


def test_the_product_places_pods_while_they_fit_and_never_beyond(product):
    whole = Pod(Demand(1, 1.0, 1.0), 1)
    running = [product.place(whole) for _ in range(14)]
    assert [sum(one.row == row for one in running) for row in range(3)] == [2, 8, 4]
    assert product.place(Pod(Demand(1, 0.1), 1)) is None
    product.release(running[3])
    assert product.place(whole).row == running[3].row


def test_cores_memory_and_models_refuse_nodes_of_the_product(product):
    assert product.place(Pod(Demand(1, 0.1, 97.0), 1)) is None
    assert product.place(Pod(Demand(1, 0.1, 1.0), 400000)) is None
    assert product.place(Pod(Demand(4, 1.0, 1.0, frozenset({1})), 1)) is None
    assert product.place(Pod(Demand(4, 1.0, 1.0, frozenset({2})), 1)).row == 2


def test_pods_without_gpus_take_cores_of_the_product_where_it_is_emptiest(product):
    cpu_pod = Pod(Demand(0, 0.0, 60.0), 1)
    assert sorted(product.place(cpu_pod).row for _ in range(3)) == [0, 1, 2]
    assert product.place(cpu_pod) is None
    assert product.place(Pod(Demand(1, 1.0, 40.0), 1)) is None


def test_best_fit_takes_the_node_with_the_least_left_and_gpu_packing_the_gpu_in_use(trace):
    order = np.arange(3)
    fleet = trace.nodes.fleet(order)
    fleet.free[1, 5] = 0.5
    share = Demand(1, 0.25, 1.0)
    costs, gpus = BestFit().costs(fleet, order, share)
    assert int(costs.argmin()) == 0
    assert gpus.tolist() == [0, 5, 0]
    costs, gpus = GpuPacking().costs(fleet, order, share)
    assert costs.tolist() == [-31, -95, -29]
    assert gpus.tolist() == [0, 5, 0]
    costs, _ = GpuPacking().costs(fleet, order, Demand(2, 1.0, 1.0))
    assert costs.tolist() == [-31, -48, -29]


def test_the_table_has_rows_for_each_variant_with_and_without_departures(folder):
    results = Results()
    placing.measure(results, folder, 1, lambda text: None)
    assert [row.what for row in results.rows if row.what[:7] in ("placed ", "product") and "100 %" not in row.what] == [
        "placed at 130 %, default",
        "product at 130 %, default",
        "placed at 130 %, multi",
        "product at 130 %, multi",
        "placed with departures, default",
        "product with departures, default",
        "placed with departures, multi",
        "product with departures, multi",
    ]


def test_shares_of_a_trace_are_a_mix(trace):
    assert isinstance(trace, Trace)
    assert dict(Mix(trace.shares).shares) == pytest.approx(trace.shares)
