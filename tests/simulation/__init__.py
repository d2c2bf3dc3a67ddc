"""A simulation of the promise: the pipeline and the state machine are real; time, failures and everything
else come from a seed.
"""
