"""Trials of a bank's hooks: what will happen to them in service is done to them, and looked at."""
