"""`make lint`: documents and user-visible strings, held against the rules of style.toml."""
