"""The instructions, calls and memory of an order, compared with stored figures."""
