"""The documentation site: the pages that are made from the code, and the hooks of mkdocs."""
