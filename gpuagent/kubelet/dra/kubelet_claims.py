"""Kubelet's file of the claims that it has prepared or begun to prepare, read only.

Kubelet writes it before it calls the driver, and takes a claim out after the driver has unprepared it. The file is in
kubelet's own folder, which an agent in a pod does not see. Source: k8s.io/kubernetes, pkg/kubelet/cm/dra/state.
"""

import json
import logging
from pathlib import Path

log = logging.getLogger(__name__)

FILE_NAME = "dra_manager_state"


def claims_of_kubelet(kubelet_dir: Path) -> frozenset[str] | None:
    """UIDs of the claims in kubelet's file; None if that is not known."""
    path = kubelet_dir / FILE_NAME
    try:
        file = json.loads(path.read_text(encoding="utf-8"))
        # The state is a text in a document that has its checksum beside it.
        checkpoint = json.loads(file["Data"])
        states = checkpoint["ClaimInfoStateList"] or []
        return frozenset(str(state["ClaimUID"]) for state in states)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as err:
        log.debug("Failed to read kubelet's claims", extra={"path": str(path), "error": str(err)})
        return None
