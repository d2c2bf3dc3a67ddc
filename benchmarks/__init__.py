"""How fast the package is, and how it grows: programs, each run with ``python -m benchmarks.<name>``."""
