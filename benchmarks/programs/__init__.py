"""The programs that ``python -m benchmarks NAME`` runs, with the modules that only they use."""
