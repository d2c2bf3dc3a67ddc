"""The data types of the service and of a call: orders, errors and events. It imports only `_support`."""
