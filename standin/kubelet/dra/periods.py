"""How long kubelet waits: the values of the real one, which tests may shorten at any time."""

from dataclasses import dataclass

JITTER = 0.5
"""A wait for the next look at a pod lasts longer by up to this part of it."""


@dataclass(slots=True)
class Periods:
    """All in seconds.

    Attributes:
        registry: between two looks at the folder of registrations.
        registration: until a failed registration is tried again; doubles each time.
        dial: limit of a connection to a registration socket.
        info: limit of GetInfo.
        notify: limit of NotifyRegistrationStatus.
        call: limit of NodePrepareResources and NodeUnprepareResources.
        wipe: from the end of a driver until its ResourceSlices are deleted.
        reconcile: between two looks for claims of pods that are gone.
        resync: between two looks at a pod without a change; so long also after a preparation that failed.
        back_off: after an error of a pod: a container that did not start, a claim that could not be unprepared.
        rejection: until the API server hears of a rejected pod. Kubelet writes a limited number of statuses a second.
        health: until a health stream that ended is opened again.
    """

    registry: float = 1.0
    registration: float = 0.5
    dial: float = 10.0
    info: float = 1.0
    notify: float = 5.0
    call: float = 45.0
    wipe: float = 30.0
    reconcile: float = 60.0
    resync: float = 60.0
    back_off: float = 10.0
    rejection: float = 0.0
    health: float = 5.0
