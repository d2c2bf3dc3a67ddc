"""Traces and metrics for OpenTelemetry; the extra is ``transfer_async[opentelemetry]``.

It knows the client and below.
"""

try:
    import opentelemetry.metrics
    import opentelemetry.trace  # noqa: F401 - asked for here alone, so that its absence is told in a line
except ModuleNotFoundError as _error:
    if not (_error.name or "").startswith("opentelemetry"):
        raise  # it is there, and something that it needs is not
    raise ImportError(
        "transfer_async.integrations.opentelemetry needs opentelemetry-api: "
        "pip install 'transfer_async[opentelemetry]'"
    ) from _error

from transfer_async.integrations.opentelemetry.observer import Telemetry, context_from, headers_of_context

__all__ = ["Telemetry", "context_from", "headers_of_context"]
