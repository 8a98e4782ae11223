"""What a fatal fault of one program does to the others of its GPU."""

import json
import time

from bench.mps.checked_driver import Check
from bench.mps.programs import PATIENCE_S, answer, begun, run
from gpuagent.host.cuda_probe import CudaProbe, Verdict


def fault(check: Check) -> None:
    """A program writes to an address that is not mapped, while its neighbor computes."""
    neighbor = begun(check.environment(4), 64)
    faulty = run(check.environment(4), "fault")
    began = time.monotonic()
    control = check.daemon.control
    statuses = {server: control.status(server) for server in control.servers()}
    said = json.dumps(faulty)
    check.note(f"a program has a fatal fault: {said}; servers just after it: {statuses}")
    verdict = _verdict(check, until=began + PATIENCE_S)
    after_s = time.monotonic() - began
    check.say(verdict is Verdict.SERVED, f"a new program is {verdict.value} {after_s:.1f} s after the fault")
    neighbor_said = json.dumps(answer(neighbor))
    check.note(f"its neighbor: {neighbor_said}")
    result = run(check.environment(4), "fill")
    cap = check.share(4).memory_mib
    taken = result.get("taken_mib", 0)
    check.say(0 < taken <= cap, f"the next program has its cap of {cap} MiB: {json.dumps(result)}")
    print(f"  {check.limits()}")


def _verdict(check: Check, until: float) -> Verdict:
    """Try new programs until one is served, or it is time; the verdict on the last one."""
    probe = CudaProbe()
    while True:
        verdict = probe.run(check.daemon.pipe_dir, check.gpu.uuid).verdict
        if verdict is Verdict.SERVED or time.monotonic() >= until:
            return verdict
