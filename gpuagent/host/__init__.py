"""Facts about a host, shared by the isolation drivers and the installer: `/proc/cgpu_km`, the MPS control program,
owners of paths. Standard library only.
"""
