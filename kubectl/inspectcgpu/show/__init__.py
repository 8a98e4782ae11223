"""Shows the report: tables, documents, notes for people."""
