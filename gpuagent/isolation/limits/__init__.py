"""Driver `limits`: NVIDIA's driver limits the GPU memory of each pod. `plan` says which limits a pod should have, and
`audit` what is wrong with those that it has; both are pure. `pods` reads and sets the limits of one pod through the
helper, `keeper` does so for all pods before containers start and while they run, and `driver` is what the agent sees.
"""
