"""The profile as it is written, checked and rendered; no run is started here."""
