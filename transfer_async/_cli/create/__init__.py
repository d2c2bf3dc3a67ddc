"""``transfer-async create``: a file of orders, checked, sent, and told of line by line."""
