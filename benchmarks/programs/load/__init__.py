"""A load on the sandbox or on your own service, with a check of every outcome."""
