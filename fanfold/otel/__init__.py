"""Traces by OpenTelemetry (extra `otel`). Nothing of it is imported unless a service is to trace: see `opening`."""
