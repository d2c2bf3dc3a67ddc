"""What is run: a module, or a package with a ``_command``, for each NAME of ``python -m benchmarks NAME``."""
