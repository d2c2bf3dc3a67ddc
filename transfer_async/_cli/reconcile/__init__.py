"""``transfer-async journal reconcile``: an export of the service's orders against a journal."""
