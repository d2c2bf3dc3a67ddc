import errno
import socket
import sys
from datetime import timedelta

import pytest

from tests.support.cases import each
from transfer_async.integrations.faststream.broker import (
    BROKERS,
    MAX_LENGTH,
    WorkerSettings,
    broker_at,
    reason,
    reason_header,
    sanitized,
)


def test_durations_may_be_timedeltas():
    assert WorkerSettings(ack_wait=timedelta(minutes=1)).ack_wait == 60.0


@each(
    ("settings", "why"),
    [
        ({"concurrency": 0}, "concurrency: must be a whole number, 1 or more"),
        ({"concurrency": True}, "concurrency: must be a whole number, 1 or more"),
        ({"ack_wait": 0}, "ack_wait: must be a finite number of seconds or a timedelta, greater than 0"),
        ({"poll": "soon"}, "poll: must be"),
        ({"patience": float("inf")}, "patience: must be"),
        ({"commands": ""}, "commands: must be a name"),
        ({"dead_letters": "a b"}, "dead_letters: must be a name"),
        ({"group": None}, "group: must be a name"),
        ({"outcomes": "transfer.commands"}, "commands, outcomes, dead_letters: must differ"),
    ],
)
def test_a_wrong_worker_setting_is_named(settings, why):
    with pytest.raises(ValueError, match=why):
        WorkerSettings(**settings)


@each("address", ["kafka://host", "localhost:4222", ""])
def test_an_unknown_broker_scheme_is_rejected(address):
    why = "^broker: must be an address that begins with one of nats://, tls://"
    with pytest.raises(ValueError, match=why):
        broker_at(address)


@pytest.mark.parametrize("scheme", BROKERS)
def test_a_missing_broker_library_is_reported_with_its_extra(scheme, monkeypatch):
    module, _, extra = BROKERS[scheme]
    monkeypatch.delitem(sys.modules, module, raising=False)
    for one in ("faststream", "faststream.exceptions"):
        monkeypatch.setitem(sys.modules, one, None)

    needed = rf"{scheme}:// needs an extra: pip install \"transfer_async\[{extra}\]\"$"
    with pytest.raises(ValueError, match=needed):
        broker_at(f"{scheme}://host")


class ServiceUnavailableError(Exception):
    """An error like the driver's, with the code of the server's error."""

    def __init__(self, err_code=None):
        self.err_code = err_code


def caused_by(error):
    """Return an error like the driver's, with the broker's address in its text."""
    try:
        raise ConnectionError("Error 111 connecting to me:secret@host") from error
    except ConnectionError as driver_error:
        return driver_error


@each(
    ("error", "why"),
    [
        (ServiceUnavailableError(), "JetStream is not enabled (start nats-server with -js)"),
        (ServiceUnavailableError(10076), "JetStream is not enabled (start nats-server with -js)"),
        (ServiceUnavailableError(10008), "ServiceUnavailableError"),
        (TimeoutError("no response within 10 s"), "no response within 10 s"),
        (TimeoutError(), "no response in time"),
        (OSError("ada.okafor@example.org"), "OSError"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "ada.okafor@example.org"), "connection refused"),
        (socket.gaierror(-2, "ada.okafor@example.org"), "the host name is unknown"),
        (caused_by(ConnectionRefusedError()), "connection refused"),
        (OSError("Multiple exceptions: [Errno 111] of ::1, [Errno 111] of 127.0.0.1"), "connection refused"),
        (OSError("Multiple exceptions: [Errno 111] of ::1, [Errno 113] of 127.0.0.1"), "OSError"),
    ],
)
def test_the_reason_why_a_broker_cannot_be_used_shows_no_secret(error, why):
    assert reason(error) == why


def test_a_dead_letter_reason_is_one_short_line_of_ascii():
    assert reason_header("néin\nandso")["Transfer-Reason"] == "n\\xe9in andso"
    assert len(reason_header("x" * 5000)["Transfer-Reason"]) == MAX_LENGTH
    assert sanitized({"a": "b"}) == {"a": "b"}
