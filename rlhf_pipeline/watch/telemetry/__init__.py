"""What other programs read of this one: Prometheus samples, OpenTelemetry spans, log lines.

Nothing is sent unless a setting names a receiver. No secret, prompt or completion leaves here.
"""
