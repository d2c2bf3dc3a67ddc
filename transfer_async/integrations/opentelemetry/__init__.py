"""OpenTelemetry traces and metrics, which require the extra ``transfer_async[opentelemetry]``.

Under the layering rules, this package may import the client and the layers below it.
"""

try:
    import opentelemetry.metrics
    import opentelemetry.trace  # noqa: F401 - imported here, so that a missing package raises one clear error
except ModuleNotFoundError as _error:
    if not (_error.name or "").startswith("opentelemetry"):
        raise  # The package is installed, but one of its own dependencies is missing.
    raise ImportError(
        "transfer_async.integrations.opentelemetry needs opentelemetry-api: "
        "pip install 'transfer_async[opentelemetry]'"
    ) from _error

from transfer_async.integrations.opentelemetry.observer import Telemetry, context_from, headers_of_context

__all__ = ["Telemetry", "context_from", "headers_of_context"]
