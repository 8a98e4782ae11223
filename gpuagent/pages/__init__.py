"""The HTTP server, and the pages as tables. The results of `/healthz` and `/readyz` come from `agent`. The topology's
table takes only plain JSON values. `web/` has the page for a browser: files that read the other pages and draw them
there. The agent does nothing for it while no browser shows it.
"""
