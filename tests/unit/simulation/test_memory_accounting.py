"""The simulated accounting of GPU memory: every trap of the two backends, one by one."""

import pytest

from gpuagent.simulation.memory_accounting import (
    NO_LIMIT,
    AddressPool,
    BackendName,
    Limits,
    Memory,
    MemoryAccounting,
    Refusal,
    RefusedError,
)

GPU = "GPU-a"
OTHER = "GPU-b"
CAPACITY = 1000
DMEM, MISC, NONE = BackendName


def accounting(backend, **options):
    """Two GPUs; two pods with two containers each, as kubelet and containerd make them."""
    options.setdefault("addresses", AddressPool(reused=1.0))
    model = MemoryAccounting(backend, {GPU: CAPACITY, OTHER: CAPACITY}, **options)
    model.add_cgroup("kubepods", "/")
    for pod in ("pod1", "pod2"):
        model.add_cgroup(pod, "kubepods")
        for container in ("a", "b"):
            model.add_cgroup(f"{pod}/{container}", pod)
    return model


@pytest.fixture(params=[DMEM, MISC])
def both(request):
    return accounting(request.param)


@pytest.fixture
def dmem():
    return accounting(DMEM)


@pytest.fixture
def misc():
    return accounting(MISC)


def allocate(model, size, cgroup="pod1/a", client="client", gpu=GPU):
    """A process of that cgroup opens the driver and allocates."""
    return model.allocate(client, gpu, size, task=cgroup, creator=cgroup)


def refused(call, *args, **named):
    with pytest.raises(RefusedError) as err:
        call(*args, **named)
    return err.value.refusal


# -- what both backends do -----------------------------------------------------------------------------------------


def test_a_limit_of_the_container_holds(both):
    both.set_limits(GPU, "pod1/a", 0, 300)
    allocate(both, 300)
    assert refused(allocate, both, 1) is Refusal.OUT_OF_MEMORY
    assert both.limits(GPU, "pod1/a") == Limits(soft=0, hard=300, used=300)
    allocate(both, 400, "pod1/b")
    allocate(both, 300, "pod2/a")


def test_a_limit_of_the_pod_holds_for_all_its_containers(both):
    both.set_limits(GPU, "pod1", 0, 300)
    allocate(both, 200)
    assert refused(allocate, both, 101, "pod1/b", client="b") is Refusal.OUT_OF_MEMORY
    allocate(both, 100, "pod1/b", client="b")
    assert both.limits(GPU, "pod1").used == 300


def test_a_limit_is_for_one_gpu(both):
    both.set_limits(GPU, "pod1/a", 0, 300)
    allocate(both, 900, gpu=OTHER)
    assert both.limits(GPU, "pod1/a").used == 0


def test_freed_memory_can_be_had_again(both):
    both.set_limits(GPU, "pod1/a", 0, 300)
    memory = allocate(both, 300)
    both.free("client", memory)
    both.free("client", memory)
    assert (both.limits(GPU, "pod1/a").used, both.used(GPU)) == (0, 0)
    allocate(both, 300)
    both.close("client")
    assert (both.limits(GPU, "pod1/a").used, both.used(GPU)) == (0, 0)


def test_no_limit_is_that_of_the_gpu(both):
    both.set_limits(GPU, "pod1/a", 0, NO_LIMIT)
    allocate(both, CAPACITY)
    assert both.limits(GPU, "pod1/a") == Limits(0, NO_LIMIT, CAPACITY)
    assert refused(allocate, both, 1) is Refusal.OUT_OF_MEMORY
    assert both.memory(GPU, "pod1/a") == Memory(total=CAPACITY, used=CAPACITY, free=0)


def test_managed_memory_counts_for_nobody(both):
    both.set_limits(GPU, "pod1/a", 0, 100)
    both.allocate_managed("client", GPU, 900)
    assert both.limits(GPU, "pod1/a").used == 0
    assert refused(allocate, both, 101, "pod2/a", client="neighbor") is Refusal.OUT_OF_MEMORY, "pushed out"
    both.close("client")
    assert both.used(GPU) == 0


def test_imported_memory_stays_with_the_exporter_also_after_its_end(both):
    for pod in ("pod1", "pod2"):
        both.set_limits(GPU, pod, 0, 300)
    memory = allocate(both, 200, client="exporter")
    both.import_memory("importer", memory)
    both.close("exporter")
    assert both.limits(GPU, "pod1").used == 200
    assert both.limits(GPU, "pod2").used == 0
    assert both.used(GPU) == both.allocated_by("exporter", GPU) == 200
    both.close("importer")
    assert (both.limits(GPU, "pod1").used, both.used(GPU)) == (0, 0)
    assert refused(both.import_memory, "importer", memory) is Refusal.NOT_FOUND


def test_the_root_cgroup_cannot_be_limited(both):
    assert refused(both.set_limits, GPU, "/", 0, 1) is Refusal.NOT_SUPPORTED
    assert refused(both.limits, GPU, "/") is Refusal.NOT_SUPPORTED


def test_a_directory_or_a_gpu_that_is_not_there(both):
    for gpu, cgroup in ((GPU, "pod3"), ("GPU-c", "pod1")):
        assert refused(both.set_limits, gpu, cgroup, 0, 1) is Refusal.NOT_FOUND
        assert refused(both.limits, gpu, cgroup) is Refusal.NOT_FOUND


def test_the_hard_limit_may_be_lowered_to_the_use(both):
    both.set_limits(GPU, "pod1", 0, 300)
    allocate(both, 200)
    both.set_limits(GPU, "pod1", 0, 200)
    assert both.limits(GPU, "pod1") == Limits(0, 200, 200)
    both.set_limits(GPU, "pod1", 0, 250)
    allocate(both, 50)


def test_a_gpu_in_mig_mode_refuses(both):
    both.set_limits(GPU, "pod1", 0, 300)
    both.set_mig(GPU, True)
    assert refused(both.set_limits, GPU, "pod1", 0, 1) is Refusal.NOT_SUPPORTED
    assert refused(both.limits, GPU, "pod1") is Refusal.NOT_SUPPORTED
    assert both.memory(GPU, "pod1/a").total == CAPACITY
    both.set_limits(OTHER, "pod1", 0, 1)
    both.set_mig(GPU, False)
    # The switch has reset the GPU.
    allocate(both, 900)


def test_without_the_feature_nothing_is_limited():
    none = accounting(NONE)
    assert refused(none.set_limits, GPU, "pod1", 0, 1) is Refusal.NOT_SUPPORTED
    assert refused(none.limits, GPU, "pod1") is Refusal.NOT_SUPPORTED
    allocate(none, 900)
    assert none.memory(GPU, "pod1/a") == Memory(CAPACITY, 900, 100)
    assert refused(allocate, none, 101) is Refusal.OUT_OF_MEMORY
    none.remove_cgroup("pod1/b")
    none.tear_down(GPU)
    assert none.used(GPU) == 0


# -- when a GPU is shut down ---------------------------------------------------------------------------------------


def has_limit(model, gpu=GPU):
    """Whether the pod's limit of 300 bytes is still in force."""
    try:
        allocate(model, 301, client="try", gpu=gpu)
    except RefusedError:
        return True
    model.close("try")
    return False


def test_without_persistence_the_last_handle_takes_the_limits_along(both):
    both.open("helper", GPU)
    both.set_limits(GPU, "pod1", 0, 300)
    both.set_limits(OTHER, "pod1", 0, 300)
    both.set_persistence(GPU, False)
    allocate(both, 100)
    both.close("client")
    assert has_limit(both), "the helper has the GPU open"
    allocate(both, 100)
    both.close("helper")
    assert has_limit(both), "a program has the GPU open"
    both.close("client")
    assert not has_limit(both)
    assert has_limit(both, OTHER), "persistence keeps the other GPU running"


def test_persistence_switched_off_for_an_idle_gpu_drops_its_limits(both):
    both.set_limits(GPU, "pod1", 0, 300)
    both.close("nobody")
    assert has_limit(both)
    both.set_persistence(GPU, False)
    assert not has_limit(both)


def test_an_importer_keeps_the_gpu_running(both):
    both.set_persistence(GPU, False)
    memory = allocate(both, 100, client="exporter")
    both.set_limits(GPU, "pod1", 0, 300)
    both.import_memory("importer", memory)
    both.close("exporter")
    assert has_limit(both)
    both.close("importer")
    assert not has_limit(both)


def test_a_reset_drops_memory_and_limits(both):
    both.set_limits(GPU, "pod1", 0, 300)
    memory = allocate(both, 200)
    both.tear_down(GPU)
    assert both.used(GPU) == 0
    both.set_limits(GPU, "pod1", 0, 300)
    both.free("client", memory)
    both.close("client")
    assert both.limits(GPU, "pod1") == Limits(0, 300, 0), "old memory is not given back to new limits"
    assert both.used(GPU) == 0


# -- dmem: the kernel counts in every ancestor ---------------------------------------------------------------------


def test_dmem_limits_of_all_ancestors_hold(dmem):
    dmem.set_limits(GPU, "pod1", 0, 300)
    dmem.set_limits(GPU, "pod1/a", 0, 900)
    assert refused(allocate, dmem, 301) is Refusal.OUT_OF_MEMORY
    allocate(dmem, 300)
    assert [dmem.limits(GPU, cgroup).used for cgroup in ("pod1/a", "pod1", "kubepods")] == [300, 300, 300]
    assert dmem.limits(GPU, "pod1/b").used == 0


def test_dmem_a_refused_allocation_is_counted_nowhere(dmem):
    dmem.set_limits(GPU, "pod1", 0, 300)
    assert refused(allocate, dmem, 301) is Refusal.OUT_OF_MEMORY
    assert [dmem.limits(GPU, cgroup).used for cgroup in ("pod1/a", "pod1", "kubepods")] == [0, 0, 0]


def test_dmem_charges_the_process_that_allocates(dmem):
    dmem.allocate("client", GPU, 100, task="pod1/a", creator="pod2/a")
    dmem.allocate("client", GPU, 10, task="pod1/a", creator=None)
    assert (dmem.limits(GPU, "pod1").used, dmem.limits(GPU, "pod2").used) == (110, 0)


def test_dmem_a_late_limit_counts_the_use_from_the_start(dmem):
    allocate(dmem, 200)
    dmem.set_limits(GPU, "pod1/a", 0, 300)
    assert dmem.limits(GPU, "pod1/a") == Limits(0, 300, 200)
    assert refused(allocate, dmem, 101) is Refusal.OUT_OF_MEMORY


def test_dmem_a_limit_below_the_use_silently_does_nothing(dmem):
    dmem.set_limits(GPU, "pod1", 0, 300)
    allocate(dmem, 200)
    dmem.set_limits(GPU, "pod1", 0, 199)
    assert dmem.limits(GPU, "pod1") == Limits(0, 300, 200)
    allocate(dmem, 100)


def test_dmem_without_a_limit_is_reported_as_such_for_each_cgroup(dmem):
    dmem.set_limits(GPU, "pod1", 0, 300)
    assert dmem.limits(GPU, "pod1/a") == Limits(0, NO_LIMIT, 0)
    assert dmem.limits(GPU, "pod2") == Limits(0, NO_LIMIT, 0)


def test_dmem_a_process_is_told_of_its_own_cgroups_limit_only(dmem):
    dmem.set_limits(GPU, "pod1", 0, 300)
    allocate(dmem, 100)
    assert dmem.memory(GPU, "pod1/a") == Memory(CAPACITY, 100, 900)
    dmem.set_limits(GPU, "pod1/a", 0, 250)
    assert dmem.memory(GPU, "pod1/a") == Memory(250, 100, 150, is_limited=True)
    assert dmem.memory(GPU, "/") == Memory(CAPACITY, 100, 900)


def test_dmem_a_removed_cgroup_leaves_no_limit(dmem):
    dmem.set_limits(GPU, "pod1/a", 0, 1)
    dmem.remove_cgroup("pod1/a")
    dmem.add_cgroup("pod2/c", "pod2")
    dmem.add_cgroup("pod1/a", "pod1")
    assert dmem.limits(GPU, "pod2/c") == dmem.limits(GPU, "pod1/a") == Limits(0, NO_LIMIT, 0)


def test_dmem_memory_that_outlives_its_cgroup_stays_charged_to_the_pod(dmem):
    dmem.set_limits(GPU, "pod1", 0, 300)
    dmem.import_memory("importer", allocate(dmem, 200, client="exporter"))
    dmem.close("exporter")
    dmem.remove_cgroup("pod1/a")
    assert dmem.limits(GPU, "pod1").used == 200
    dmem.close("importer")
    assert dmem.limits(GPU, "pod1").used == 0


def test_dmem_a_directory_without_its_files(dmem):
    dmem.add_cgroup("pod3", "kubepods", dmem_files=False)
    dmem.add_cgroup("pod3/a", "pod3")
    for cgroup in ("pod3", "pod3/a"):
        assert refused(dmem.set_limits, GPU, cgroup, 0, 1) is Refusal.NOT_FOUND
    dmem.set_limits(GPU, "kubepods", 0, 300)
    assert dmem.limits(GPU, "pod3/a") == Limits(0, 300, 0), "a read finds the nearest ancestor that has them"
    allocate(dmem, 300, "pod3/a")
    assert refused(allocate, dmem, 1, "pod3/a") is Refusal.OUT_OF_MEMORY
    assert dmem.memory(GPU, "pod3/a") == Memory(300, 300, 0, is_limited=True)


def test_dmem_no_directory_on_the_way_has_its_files(dmem):
    dmem.add_cgroup("system", "/", dmem_files=False)
    assert refused(dmem.limits, GPU, "system") is Refusal.NOT_FOUND
    assert dmem.memory(GPU, "system") == Memory(CAPACITY, 0, CAPACITY)
    allocate(dmem, 900, "system")


def test_dmem_a_soft_limit_of_a_removed_cgroup_stays_with_its_ancestors(dmem):
    dmem.set_limits(GPU, "pod1/a", 100, 300)
    dmem.set_limits(GPU, "pod1/b", 50, 300)
    assert dmem.limits(GPU, "kubepods").soft == dmem.limits(GPU, "pod1").soft == 150
    dmem.set_limits(GPU, "pod1/b", 0, 300)
    assert dmem.limits(GPU, "pod1").soft == 100
    dmem.remove_cgroup("pod1/a")
    assert dmem.limits(GPU, "kubepods").soft == dmem.limits(GPU, "pod1").soft == 100


# -- misc: the driver's own map, by the address of a cgroup --------------------------------------------------------


def test_misc_only_the_nearest_limit_counts(misc):
    misc.set_limits(GPU, "pod1", 0, 300)
    misc.set_limits(GPU, "pod1/a", 0, 900)
    allocate(misc, 900)
    assert misc.limits(GPU, "pod1") == Limits(0, 300, 0)


def test_misc_charges_the_process_that_opened_the_driver(misc):
    for pod in ("pod1", "pod2"):
        misc.set_limits(GPU, pod, 0, 300)
    misc.allocate("client", GPU, 100, task="pod1/a", creator="pod2/a")
    assert (misc.limits(GPU, "pod1").used, misc.limits(GPU, "pod2").used) == (0, 100)


def test_misc_charges_nobody_when_the_process_that_opened_the_driver_has_ended(misc):
    misc.set_limits(GPU, "pod1", 0, 300)
    misc.allocate("client", GPU, 900, task="pod1/a", creator=None)
    assert misc.limits(GPU, "pod1").used == 0


def test_misc_a_late_limit_adds_to_that_of_the_pod(misc):
    misc.set_limits(GPU, "pod1", 0, 300)
    allocate(misc, 300)
    misc.set_limits(GPU, "pod1/a", 0, 300)
    assert misc.limits(GPU, "pod1/a") == Limits(0, 300, 0)
    allocate(misc, 300)
    assert misc.allocated_by("client", GPU) == 600


def test_misc_what_was_charged_to_an_ancestor_is_given_back_to_it(misc):
    misc.set_limits(GPU, "pod1", 0, 300)
    memory = allocate(misc, 200)
    misc.set_limits(GPU, "pod1/a", 0, 300)
    misc.free("client", memory)
    assert misc.limits(GPU, "pod1") == misc.limits(GPU, "pod1/a") == Limits(0, 300, 0)


def test_misc_memory_from_before_the_first_limit_is_never_charged(misc):
    memory = allocate(misc, 900)
    misc.set_limits(GPU, "pod1", 0, 50)
    assert misc.limits(GPU, "pod1").used == 0
    misc.free("client", memory)
    assert misc.limits(GPU, "pod1").used == 0


def test_misc_a_limit_below_the_use_is_refused(misc):
    misc.set_limits(GPU, "pod1", 0, 300)
    allocate(misc, 200)
    assert refused(misc.set_limits, GPU, "pod1", 5, 199) is Refusal.INVALID_LIMIT
    assert misc.limits(GPU, "pod1") == Limits(0, 300, 200)


def test_misc_reads_report_the_nearest_limit(misc):
    assert refused(misc.limits, GPU, "pod1/a") is Refusal.NOT_SUPPORTED, "none is set"
    misc.set_limits(GPU, "pod1", 7, 300)
    allocate(misc, 100)
    assert misc.limits(GPU, "pod1/a") == misc.limits(GPU, "pod1/b") == Limits(7, 300, 100)
    assert refused(misc.limits, GPU, "pod2/a") is Refusal.NOT_SUPPORTED


def test_misc_a_process_is_told_of_the_nearest_limit(misc):
    misc.set_limits(GPU, "pod1", 0, 300)
    allocate(misc, 100)
    assert misc.memory(GPU, "pod1/a") == Memory(300, 100, 200, is_limited=True)
    assert misc.memory(GPU, "pod2/a") == Memory(CAPACITY, 100, 900)
    allocate(misc, 800, "pod2/a")
    assert misc.memory(GPU, "pod1/a") == Memory(300, 100, 100, is_limited=True), "no more is free than the GPU has"


def test_misc_a_new_cgroup_inherits_the_limit_at_its_address(misc):
    misc.set_limits(GPU, "pod1", 0, 100)
    misc.set_limits(GPU, "pod2/a", 0, 900)
    misc.remove_cgroup("pod2/a")
    misc.add_cgroup("pod1/c", "pod1")
    assert misc.limits(GPU, "pod1/c") == Limits(0, 900, 0)
    allocate(misc, 900, "pod1/c")


def test_misc_no_limit_is_inherited_as_well(misc):
    misc.set_limits(GPU, "pod1", 0, 100)
    misc.set_limits(GPU, "pod2/a", 0, NO_LIMIT)
    misc.remove_cgroup("pod2/a")
    misc.add_cgroup("pod1/c", "pod1")
    allocate(misc, 900, "pod1/c")


def test_misc_an_heir_inherits_what_is_still_charged(misc):
    misc.set_limits(GPU, "pod1/a", 0, 300)
    misc.import_memory("importer", allocate(misc, 200, client="exporter"))
    misc.close("exporter")
    misc.remove_cgroup("pod1/a")
    misc.add_cgroup("pod2/c", "pod2")
    assert misc.limits(GPU, "pod2/c") == Limits(0, 300, 200)
    misc.close("importer")
    assert misc.limits(GPU, "pod2/c") == Limits(0, 300, 0)


def test_misc_needs_no_files(misc):
    misc.add_cgroup("pod3", "kubepods", dmem_files=False)
    misc.set_limits(GPU, "pod3", 0, 1)
    assert misc.limits(GPU, "pod3").hard == 1


# -- addresses -----------------------------------------------------------------------------------------------------


def addresses(pool):
    """The addresses of 200 pods, of which 10 are there at the same time."""
    model = MemoryAccounting(MISC, {GPU: CAPACITY}, addresses=pool)
    taken = []
    for number in range(200):
        taken.append(model.add_cgroup(number, "/").address)
        if number >= 10:
            model.remove_cgroup(number - 10)
    return taken


def test_addresses_are_used_again_in_the_same_way_for_the_same_seed():
    first, again, other = (addresses(AddressPool(seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert 0.7 < 1 - len(set(first)) / len(first) < 0.95


def test_addresses_may_be_used_again_always_or_never():
    assert len(set(addresses(AddressPool(reused=1.0)))) == 11
    assert len(set(addresses(AddressPool(reused=0.0)))) == 200


def test_what_the_kernel_refuses_is_a_mistake_of_the_caller(both):
    for name, parent in (("pod1", "kubepods"), ("/", "/")):
        with pytest.raises(ValueError, match="there is a cgroup"):
            both.add_cgroup(name, parent)
    with pytest.raises(ValueError, match="cgroup 'pod1' has 'pod1/a' below it"):
        both.remove_cgroup("pod1")
    with pytest.raises(ValueError, match="root"):
        both.remove_cgroup("/")
    assert "pod1" in both
    assert "pod3" not in both
    assert not both.cgroup("pod1").is_root
