"""Contents by their SHA-256 where several machines reach them: object stores, a database."""
