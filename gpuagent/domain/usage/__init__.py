"""Which containers use how much of each GPU, and what each was guaranteed: samples of the driver joined with pods.
Only metrics and pages need it.
"""
