"""What is true of GPUs, sharing, pods and placement can be used without a node's state, as a scheduler does."""

import subprocess
import sys

WITHOUT_A_STATE = """
import sys
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.gpus.topology import topology
from gpuagent.domain.placement.best_sets import BestSets
from gpuagent.domain.placement.share import ShareRequest, choose_share
from gpuagent.domain.placement.whole import WholeRequest, choose_whole
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.scheduling.decision import Decision
from gpuagent.domain.sharing.grant import DeviceAccess
from gpuagent.domain.sharing.mode import Kind
from gpuagent.domain.sharing.units import MemoryUnit

gpus = [Gpu(uuid=f"GPU-{n}", index=n, minor=n, pci_bus_id="", model="", memory_mib=16384) for n in range(4)]
order = {gpu.uuid: gpu.index for gpu in gpus}
limits = {"resources": {"limits": {"aliyun.com/gpu-mem": "4"}}}
pod = parse_pod({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": [{"name": "c", **limits}]}})
size = pod.containers[0].limits["aliyun.com/gpu-mem"]
(chosen,) = choose_share(ShareRequest(resource="aliyun.com/gpu-mem", size=size, free={"GPU-1": 9, "GPU-2": 5}, order=order))
access = DeviceAccess(unit=MemoryUnit(), device_nodes=["/dev/nvidia2"])
share = access.grant("aliyun.com/gpu-mem", Kind.MEMORY_SHARE, size, [gpus[order[chosen]]])
assert (share.env["NVIDIA_VISIBLE_DEVICES"], share.device_nodes) == ("GPU-2", ("/dev/nvidia2",)), share

sets = BestSets(topology(gpus, {}).mbps)
names = {uuid: f"GPU {n}" for uuid, n in order.items()}
group = choose_whole(WholeRequest(resource="aliyun.com/gpu", size=2, free=set(order), sets=sets, positions=order, names=names))
assert set(group) == {"GPU-0", "GPU-1"}, group

outside = [name for name in sys.modules if name.startswith("gpuagent.domain.")]
known = {"gpus", "sharing", "pods", "placement", "scheduling", "refusal"}
assert {name.split(".")[2] for name in outside} <= known, outside
assert not {"grpc", "pynvml", "kubernetes"} & sys.modules.keys()
"""


def test_it_places_groups_and_grants():
    done = subprocess.run([sys.executable, "-c", WITHOUT_A_STATE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
