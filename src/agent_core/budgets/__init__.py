"""What model calls cost, and what a run, a session or a child may spend."""
