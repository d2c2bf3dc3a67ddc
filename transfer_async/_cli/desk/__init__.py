"""``transfer-async desk``: the operators' page, on this machine alone."""
