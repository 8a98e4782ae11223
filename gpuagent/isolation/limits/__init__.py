"""Driver `limits`: NVIDIA's driver limits the GPU memory of each pod. `plan` says which limits a pod should have, and
`audit` what is wrong with those that it has; both are pure. `pods` reads and sets the limits of one pod through the
helper, and `keeper` does so for all pods before containers start and while they run. It knows containers by
`container_names`, looks at new ones once more by `look_again`, and leaves pods without a share to `foreign`. The agent
sees `driver`.
"""
