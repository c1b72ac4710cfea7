"""Spans and metrics of runs, for OpenTelemetry; without it, only `opening` is loaded."""
