"""The load of many clients on a service that fails and recovers, in virtual time."""
