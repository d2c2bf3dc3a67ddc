"""Which scopes look the same, so that a new one is refused because it probably means the same service."""

from tests.support.cases import each
from transfer_async.journal.model import scope_as_seen


@each(
    ("scope", "other"),
    [
        ("live", "LIVE"),
        ("live", " live  "),
        ("live", "live/ "),
        ("live", "li\u200bve"),
        ("live", "\uff4cive"),
        ("branch 1", "branch\u00a0 1"),
        ("live/payments", "Live/Payments"),
        ("https://host/api/A", "HTTPS://Host/api/A/"),
        ("https://host", "https://HOST/"),
    ],
)
def test_these_scopes_look_the_same(scope: str, other: str):
    assert scope_as_seen(scope) == scope_as_seen(other)


@each(
    ("scope", "other"),
    [
        ("branch 1 12", "branch 11 2"),
        ("live", "live2"),
        ("https://host/api/A", "https://host/api/a"),
        ("https://host/api", "http://host/api"),
        ("https://host/a//b", "https://host/a/b"),
    ],
)
def test_these_scopes_look_different(scope: str, other: str):
    """They may be two services, whose keys must not be mixed."""
    assert scope_as_seen(scope) != scope_as_seen(other)
