"""What each container gets of all the claims and requests that it names.

A container runtime adds up the device nodes of a container's CDI devices. Of a variable that several of them set, it
keeps the last one, and kubelet takes the claims of a container in random order. So the environment of a container is
worked out for all that it names, and only CDI devices carry it that no other container gets in another union.

- `uses`: which container names what.
- `environments`: which CDI device carries the environment of which containers.
- `union`: the GPUs of a container, and the environment for them.
"""
