"""Spans and metrics of runs, for OpenTelemetry; `opening` alone is loaded while it is off."""
