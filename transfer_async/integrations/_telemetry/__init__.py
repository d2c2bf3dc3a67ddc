"""The parts of the OpenTelemetry observer; `transfer_async.integrations.opentelemetry` puts them together."""
