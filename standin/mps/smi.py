"""A stand-in for the few calls of `nvidia-smi` about compute modes that the MPS driver makes.

`nvidia-smi --query-gpu=uuid,compute_mode`, `--query-compute-apps=gpu_uuid,process_name`, `-i UUID -c MODE` and
`-c MODE` (every GPU), with the words that the real one prints. The GPUs are in the JSON file STANDIN_SMI names, which
tests read and change: ``{"modes": {"GPU-0a": "Default"}, "apps": [["GPU-0a", "python"]], "refuse": "text"}``.
"""

import fcntl
import json
import os
import sys
from pathlib import Path

SPELLED = {"DEFAULT": "Default", "EXCLUSIVE_PROCESS": "Exclusive_Process", "PROHIBITED": "Prohibited"}


def main(arguments: list[str]) -> int:
    """The command."""
    file = Path(os.environ["STANDIN_SMI"])
    # Several may run at once, as for the real program.
    lock = file.with_suffix(".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    known = json.loads(file.read_text())
    match arguments:
        case ["--query-gpu=uuid,compute_mode", "--format=csv,noheader"]:
            print("\n".join(f"{uuid}, {mode}" for uuid, mode in known["modes"].items()))
        case ["--query-compute-apps=gpu_uuid,process_name", "--format=csv,noheader"]:
            print("\n".join(f"{uuid}, {name}" for uuid, name in known.get("apps", [])))
        case ["-i", _, "-c", mode] | ["-c", mode]:
            if known.get("refuse"):
                print(known["refuse"])
                return 3
            chosen = arguments[1:2] if arguments[0] == "-i" else list(known["modes"])
            known["modes"] |= dict.fromkeys(chosen, SPELLED[mode])
            scratch = file.with_suffix(".new")
            scratch.write_text(json.dumps(known))
            scratch.replace(file)
        case _:
            print(f"Invalid combination of input arguments: {arguments}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
