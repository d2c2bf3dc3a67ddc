"""The data types of the service and of a call: orders, errors, events. It imports only `_support`."""
