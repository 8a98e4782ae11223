"""Prepares ResourceClaims for their containers: reads the claim, has it isolated, and writes what the runtime reads.
`preparer` prepares and unprepares, and goes on with the claims of a former run; `claim_files` writes and removes their
files. It may import the core, `isolation` and `system`, and none of the edges.
"""
