"""The model of kube-scheduler beside a replica of gpuscheduler: when a pod that waits is tried again."""

from tests.unit.simworld.own_process import output_of

BEGIN = """
from simworld.runtime.replace import replace_machine
replace_machine()
import random
from simworld.parts.kube_scheduler import NAME, KubeScheduler
from simworld.runtime.http import SimulatedApi
from simworld.runtime.kernel import Process, begin, kernel

machine = begin(1)
api = SimulatedApi("node-1", {}, kubelet="v1.36.0")
calls = []

def create(name, amount, node=""):
    limits = {"aliyun.com/gpu-mem": str(amount)}
    spec = {"containers": [{"name": "main-0", "image": "work", "resources": {"limits": limits}}], "schedulerName": NAME}
    if node:
        spec["nodeName"] = node
    api.objects.create("pods", "default", {"metadata": {"name": name}, "spec": spec})

def has_room(amount):
    status = {"status": {"allocatable": {"aliyun.com/gpu-mem": str(amount)}}}
    api.objects.patch(("nodes", "", "node-1"), "status", status, strategic=False)

def run(call):
    process = Process("kube-scheduler")
    scheduler = KubeScheduler("first", api, random.Random(1), call, lambda: True, lambda: None)
    machine.spawn(scheduler.run, "kube-scheduler", process)
"""


def play(code):
    """Run code on a simulated machine, in a process of its own."""
    output_of(BEGIN + code, timeout_s=300)


def test_a_pod_is_tried_again_if_an_event_comes_while_the_extender_refuses_it():
    """As kube-scheduler keeps the events that come during the cycle of a pod."""
    play("""
has_room(80)
create("leaves", 8, node="node-1")
create("waits", 8)

def call(verb, body):
    calls.append(verb)
    if len(calls) == 1:
        api.objects.delete(("pods", "default", "leaves"), grace_s=0)
        kernel().sleep(5.0)
    return {"NodeNames": []}

run(call)
assert machine.run(lambda: len(calls) == 2, 30.0), calls
machine.run(lambda: False, 60.0)
assert len(calls) == 2, "it was tried again without an event"
assert not machine.failed
""")


def test_what_was_deleted_while_the_informers_were_behind_holds_nothing():
    play("""
has_room(8)
create("bound", 8)
create("waits", 8)

def call(verb, body):
    calls.append(body)
    if verb == "bind" and body["PodName"] == "bound":
        # Deleted while the informer is behind, and its events are forgotten before they are read.
        api.objects.delete(("pods", "default", "bound"), grace_s=0)
        api.expire()
    return {"NodeNames": body.get("NodeNames")}

run(call)
asked = lambda: [body for body in calls if "Pod" in body and body["Pod"]["metadata"]["name"] == "waits"]
assert machine.run(asked, 60.0), calls
assert not machine.failed
""")


def test_a_pod_waits_for_five_minutes_from_its_last_try_on():
    play("""
has_room(80)
create("waits", 8)
tried_at = []

def call(verb, body):
    tried_at.append(kernel().now)
    return {"NodeNames": []}

run(call)
machine.run(lambda: False, 200.0)
create("comes", 8, node="node-1")
machine.run(lambda: False, 400.0)
assert not machine.failed
first, woken, flushed = tried_at
assert 200.0 < woken - first < 210.0, tried_at
assert 300.0 < flushed - woken < 310.0, tried_at
""")
