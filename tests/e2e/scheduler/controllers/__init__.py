"""The scheduler beside other controllers of the field, which run here as they are released.

- `controller`: one of them as a process, with the objects of its chart.
- `held`: GPU-seconds that the scheduler held for pods that cannot start.
- `karpenter`: Karpenter as a process, with the objects of the example.
- `page`: runs the commands of a page of the documentation.
- `workloads`: Jobs, and the other objects that the tests create.
"""
