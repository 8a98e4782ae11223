"""The HTTP server, and the pages as tables and pictures. The topology's table and picture take only plain JSON
values.
"""
