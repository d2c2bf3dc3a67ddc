"""`transfer-async probe`: what a service does that its specification does not show."""
