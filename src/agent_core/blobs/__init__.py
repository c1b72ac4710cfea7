"""Contents named by their SHA-256, for several machines: in object stores or a database."""
