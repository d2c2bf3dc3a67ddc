"""``transfer-async worker`` and ``send``: commands from a broker, and to it."""
