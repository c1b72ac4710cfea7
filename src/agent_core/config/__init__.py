"""The user's configuration: one TOML file below the home, read once, never written."""
