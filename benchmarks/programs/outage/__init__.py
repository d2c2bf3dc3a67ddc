"""What clients do to a service that fails and comes back, in virtual time."""
