"""The operators' page for orders in doubt. Install the page with ``pip install 'transfer_async[desk]'``.

This package may import the client and the layers below it. The operators' page reads the journal and records
operators' decisions in it. The page never calls the transfer service.
"""

try:
    import jinja2  # noqa: F401 - imported here, so that a missing package raises one clear error
except ModuleNotFoundError as _error:
    if (_error.name or "").partition(".")[0] not in ("jinja2", "markupsafe"):
        raise  # The package is installed, but one of its own dependencies is missing.
    raise ImportError("transfer_async.desk needs Jinja2: pip install 'transfer_async[desk]'") from _error

from transfer_async.desk.application import desk
from transfer_async.desk.auth import Operator, Role

__all__ = ["Operator", "Role", "desk"]
