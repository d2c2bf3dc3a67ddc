"""The words of the service and of a call, as typed values: orders, errors, events. It may know `_support`."""
