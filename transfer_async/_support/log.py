"""The package's one logger."""

from __future__ import annotations

import logging

log: logging.Logger = logging.getLogger("transfer_async")
