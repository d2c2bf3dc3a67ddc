"""``transfer-async journal``: what an operator sees and does."""
