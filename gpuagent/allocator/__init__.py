"""Answers kubelet's calls: Allocate and PreStartContainer (`allocator`), and GetPreferredAllocation
(`preferred_allocation`). The answers are pure functions of `domain/deviceplugin`: `identify`, `choose`, `allocate` and
`check_start`. `requester_queries` asks kubelet and the API server which container a call is for, waits for a pod that
the agent has not seen, and says what follows where one of the two is silent. `old_kubelets` stands between kubelets
before 1.19 and the rest. One lock guards immutable values (`allocator_state`) and is never held during a query. The
package may not access the API server, NVML or a disk. It uses kubelet's pod-resources API only through the Protocol in
`kubelet_allocations`.
"""
