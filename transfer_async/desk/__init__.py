"""The operators' page for orders in doubt; the extra is ``transfer_async[desk]``.

It imports the client and lower layers. It reads the journal and writes decisions to it; it never calls the
service.
"""

try:
    import jinja2  # noqa: F401 - imported first, so that its absence gives one clear line
except ModuleNotFoundError as _error:
    if (_error.name or "").partition(".")[0] not in ("jinja2", "markupsafe"):
        raise  # it is there, and something that it needs is not
    raise ImportError("transfer_async.desk needs Jinja2: pip install 'transfer_async[desk]'") from _error

from transfer_async.desk.application import desk
from transfer_async.desk.auth import Operator, Role

__all__ = ["Operator", "Role", "desk"]
