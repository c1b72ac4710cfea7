"""A session as a file: a page, a document, JSON lines, or a fixture."""
