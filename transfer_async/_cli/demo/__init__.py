"""``transfer-async demo``: a small bank, its orders, and what may go wrong with them."""
