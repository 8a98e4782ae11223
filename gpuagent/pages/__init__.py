"""The HTTP server, and the pages as tables and pictures. The results of `/healthz` and `/readyz` come from `agent`.
The topology's table and picture take only plain JSON values.
"""
