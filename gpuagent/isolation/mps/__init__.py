"""Driver `mps`: NVIDIA's Multi-Process Service limits memory and compute of each client. `share` says what a container
gets. `choice` has one control daemon serve all GPUs where another program runs one, and else keeps one for each GPU:
`daemon` finds, starts and ends it, `daemon_state` is what is known of it, `daemon_watch` looks after it, `gpu_keeper`
is its thread. `clients` looks after the programs that use it. `exclusive` sets compute modes. `control` is the command
`gpuagent mps-control`, and `driver` is what the agent sees.
"""
