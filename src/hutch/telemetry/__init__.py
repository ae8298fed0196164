"""Traces: the W3C trace context, and export through OpenTelemetry."""
