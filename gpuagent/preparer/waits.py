"""How long calls about claims wait for what they need."""

WAIT_S = 40.0
"""How long a call waits for an isolation layer that is coming. Kubelet waits 45 s, and retries after 60 to 90 s."""
RETRY_S = 0.5
SEEN_S = 2.0
"""How long a call waits for the pods of its claim: kubelet may see a new pod before the agent does. It waits as long
for a GPU of another claim that living pods use, because the agent may not have seen their end yet."""
EVENT_AFTER_S = 5.0
"""How long a call waits until an Event says for what."""
LOOK_S = 2.0
"""How often a call that waits for another claim looks whether kubelet has forgotten that."""
