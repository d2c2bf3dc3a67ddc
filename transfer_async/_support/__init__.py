"""What knows nothing of orders: time, tasks, callables, the log. It may import nobody."""
