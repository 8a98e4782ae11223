"""Prepares ResourceClaims for their containers: reads the claim, has it isolated, and writes what the runtime reads.
`preparer` answers the calls, `claim_isolation` has a claim isolated, `gpu_hold` keeps its GPUs from other claims, and
`prepared_claims` has the claims that are prepared, of former runs too; `claim_files` writes and removes their files. It
may import the core, `isolation` and `system`, and none of the edges.
"""
