"""Requests go only to the base URL, and only `create_order` can use the create-order path."""

import re
from base64 import b64encode
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cases import each
from tests.support.strategies import CHARACTERS
from transfer_async import PostgresJournal
from transfer_async._http.urls import (
    CREATE_ORDER,
    WHO_AM_I,
    checked_path,
    normalised,
    proxy_and_authorization,
)
from transfer_async._support.util import public
from transfer_async.integrations.faststream.broker import broker_at
from transfer_async.journal import journal_at

# --- the base address ---------------------------------------------------------------------------


ONE_FORM = {
    "https://bank.example": (
        *("https://bank.example", "https://bank.example/", "https://bank.example///"),
        *("HTTPS://Bank.EXAMPLE", "https://bank.example:443", "https://bank.example:443/"),
        *("https://bank.example?", "https://bank.example#", "https://bank.example."),
    ),
    "https://bank.example:8443": ("https://bank.example:8443", "https://bank.example.:8443"),
    "https://bank.example/transfers": (
        *("https://bank.example/transfers", "https://BANK.example.:443/transfers/"),
        "https://bank.example/%74ransfers",
    ),
    "https://bank.example/Transfers": ("https://bank.example/Transfers/",),
    "https://bank.example/a/b": ("https://bank.example:443/a/b//",),
    "https://bank.example/a%2Fb": ("https://bank.example/a%2Fb", "https://bank.example/a%2fb"),
    "https://192.0.2.7": ("https://192.0.2.7", "https://192.0.2.7."),
    "https://[2001:db8::1]:8443": ("https://[2001:db8::1]:8443/",),
    "https://xn--bcher-kva.example": (
        *("https://bücher.example", "https://bücher.example。", "https://XN--BCHER-KVA.example"),
    ),
    "https://bank.example/b/c": ("https://bank.example/a/../b/./c",),
    "http://localhost:8080": ("http://localhost.:8080", "http://localhost:8080"),
    "http://localhost": ("http://LOCALHOST:80/",),
    "http://127.0.0.1:5000": ("http://127.0.0.1:5000",),
    "http://127.0.0.2": ("http://127.0.0.2",),
    "http://[::1]:8080": ("http://[::1]:8080/",),
    "http://[::1]": ("http://[0:0:0:0:0:0:0:1]",),
}


@each(("becomes", "forms"), [*ONE_FORM.items()])
def test_an_address_is_normalized_to_one_form(becomes, forms):
    for form in (*forms, becomes):
        assert normalised(form) == becomes, form


@each(
    "address",
    [
        *("http://bank.example", "http://localhost.evil.com", "http://127.0.0.1.evil.com"),
        *("http://evil.com/localhost", "http://evil-localhost", "http://128.0.0.1", "http://0.0.0.0"),
        *("http://10.0.0.1", "http://[::2]", "http://127.1", "http://2130706433"),
    ],
)
def test_http_is_accepted_for_loopback_only(address):
    with pytest.raises(ValueError, match=r"^base_url: must be https, unless the host is "):
        normalised(address)


REFUSED = {
    "must not contain a user or a password": (
        *("https://user@bank.example", "https://user:secret@bank.example", "https://:secret@bank.example"),
        "https://user:1/secret@bank.example",  # read literally, the host is "user", and the port 1
    ),
    "must be https": ("http://localhost:secret@evil.com",),
    "must not contain a query or a fragment": (
        *("https://bank.example?token=secret", "https://bank.example/#secret"),
    ),
    "must not contain spaces or control characters": (
        *("https://bank .example", "https://bank.example\n", "https://bank.exa\tmple"),
        "https://bank.example/\x00",
    ),
    "is not an https address": (
        *("ftp://bank.example", "file:///etc/passwd", "bank.example", "//bank.example", "/api", "https://"),
        *("https://.", "https://bank.example..", "https://bank..example", ""),
        # other spellings of an IP address, and hosts that are not valid
        *("https://127.1", "https://2130706433", "https://0x7f.0.0.1", "https://127.000.000.001"),
        *("https://bank.example.0x7f", "https://1.2.3.4.5", "https://b%61nk.example"),
        "https://bank%2eexample",
    ),
    "must not contain an empty path segment ('//'), a dot segment or a backslash": [
        f"https://bank.example{path}"
        for path in (
            *("//v1", "/v1//a", "///v1", "/..//v1", "/%2Fv1", "/v1%2F", "/v1/%2f", "/a%252F/b"),
            *("/v1/%252F%2Fb", "/v1/%252e%252e/b", "/a/%252E/b", "/a%2F..%2Fb", "/v1\\x", "/v1%5Cx"),
        )
    ],
    "is percent-encoded too many times": ("https://bank.example/%" + "25" * 20 + "41",),
    "is not a URL": (
        *("https://bank.example:99999", "https://bank.example:port", "https://[::1", None, 17),
        b"https://bank.example",
    ),
}


@each(("why", "addresses"), [*REFUSED.items()])
def test_any_other_address_is_refused_by_name_without_secrets(why, addresses):
    for address in addresses:
        with pytest.raises(ValueError, match=f"^base_url: {re.escape(why)}") as caught:
            normalised(address)

        assert "secret" not in str(caught.value), address


@given(st.text(CHARACTERS, max_size=30))
def test_any_text_as_an_address_raises_at_most_a_value_error(text):
    for address in (text, f"https://{text}", f"https://bank.example{text}"):
        try:
            once = normalised(address)
        except ValueError:
            continue
        assert normalised(once) == once


# --- the paths below it -------------------------------------------------------------------------

FINE = [
    *("/", WHO_AM_I, "/api/api/v1/order/tx-abc123", "/api/api/v1/order/create-draft"),
    *("/api/api/v1/order/created", "/api/api/v1/order/create/tx-abc123", "/api/api/v1/orders/create"),
    *("/api/v1/order/create", "/api/api/v1/order", "/users/ada%40example.com", "/a%2Fb/c%20d", "/a%252Fb"),
    *("/a//b", "/trailing/", "/three/.../dots", "/file.json"),
    *("/search?name=a&path=/api/api/v1/order/create", "/search?up=../..", "/semi;v=1/colon", "/100%"),
    "/~tilde/!$&'()*+,=:@",
]


@each("path", FINE)
def test_a_valid_path_is_returned_unchanged(path):
    assert checked_path(path) is path


CREATE = "/api/api/v1/order/create"
DISGUISES = [
    CREATE_ORDER,
    # extra slashes, and capital letters
    *(f"{CREATE}/", f"{CREATE}//", f"//{CREATE[1:]}", f"///{CREATE[1:]}", "/api//api/v1/order/create"),
    *("/api/api/v1///order/create", "/API/API/V1/ORDER/CREATE", "/api/Api/v1/Order/cReate"),
    # percent-encoded letters and slashes, some encoded more than once
    *("/api/api/v1/order/%63reate", "/api/api/v1/order/%43reate", "/%61%70%69/api/v1/order/create"),
    *("/api/api/v1/order/%2563reate", "/api/api/v1/order/%252563reate", "/api/api/v1/order%2Fcreate"),
    *("/api/api/v1/order%2fcreate", "/api/api/v1/order%252Fcreate", "/api%2Fapi%2Fv1%2Forder%2Fcreate"),
    *("/%2Fapi/api/v1/order/create", "/api/api/v1\\order\\create", "/api/api/v1/order%5Ccreate"),
    "/api/api/v1/order%255Ccreate",
    # what some servers drop: parameters, a query, a fragment, blanks, endings
    *(f"{CREATE};", f"{CREATE};x=1", "/api/api/v1/order;x=1/create", "/api;a/api;b/v1;c/order;d/create;e"),
    *(f"{CREATE}%3Bx=1", f"{CREATE};x=%2Fy", f"{CREATE}%3Bx=%252Fy"),
    *("/api/api/v1/order;a=%2Fb/create%3Bc=%252Fd", f"{CREATE}?", f"{CREATE}?x=1", f"{CREATE}/?x=1"),
    *(f"{CREATE}%3Fx=1", f"{CREATE}%3Fx=/y", f"{CREATE}%253Fx", f"{CREATE}%23x", f"{CREATE}%20"),
    *("/api/api/v1/%20order/create", f"{CREATE}%09", f"{CREATE}%00", f"{CREATE}%0A"),
    # dot segments
    *("/api/api/v1/order/./create", "/api/api/v1/./order/create", "/api/api/v1/x/../order/create"),
    *("/api/api/v1/order/x/..;/create", f"{CREATE}/x/..", f"{CREATE}/.", "/api/api/v1/x/%2e%2e/order/create"),
    *("/api/api/v1/x/%2E./order/create", "/api/api/v1/x/%252e%252e/order/create"),
    *("/api/api/v1/x%2F..%2Forder/create", f"/{quote(quote(quote(quote('order'))), safe='')}/..{CREATE}"),
]


@each("path", DISGUISES)
def test_every_disguise_of_the_create_order_path_is_refused_and_not_shown(path):
    with pytest.raises(ValueError, match=r"^path: ") as caught:
        checked_path(path)

    assert path not in str(caught.value)


def disguised_letters(letter):
    """Draw each letter unchanged, in upper case, or percent-encoded up to three times."""
    encoded = f"%{ord(letter):02x}"
    twice = encoded.replace("%", "%25")
    return st.sampled_from([letter] * 6 + [letter.upper(), encoded, twice, twice.replace("%", "%25")])


@st.composite
def disguised(draw):
    """Draw the create-order path with encoded letters and characters that lenient servers drop."""
    segments = []
    for segment in CREATE_ORDER.strip("/").split("/"):
        letters = [draw(disguised_letters(letter)) for letter in segment]
        parameters = draw(st.sampled_from(["", "", "", ";", ";a=1", "%3ba", ";a=%2F", "%20"]))
        segments.append("".join(letters) + parameters)
    slashes = st.sampled_from(["/", "/", "/", "//", "%2F", "%252f", "/%2f"])
    path = "/" + segments[0] + "".join(draw(slashes) + segment for segment in segments[1:])
    return path + draw(st.sampled_from(["", "", "/", "//", "%2f", "?", "?a=/b", "%3Fa"]))


@given(disguised())
def test_every_mix_of_disguises_is_refused(path):
    with pytest.raises(ValueError, match=r"^path: "):
        checked_path(path)


@each(
    "path",
    [
        *("", "relative", "api/api/v1/user/who-am-i", "?x=1", "https://evil.com/", "//evil.com/"),
        *("/\\evil.com", "\\\\evil.com", "/%2Fevil.com", "/%5Cevil.com", "/../admin", "/a/../b", "/a/./b"),
        *("/a/..", "/%2e%2e/admin", "/a/%252e%252e/b", "/a/..;x/b", "/a b", "/a\tb", "/a\r\nHost: evil.com"),
        *("/ä", "/a#b", "/a?b=\\c", "/a%00", "/a%0d%0aHost:%20evil.com", None, b"/a", 7),
        "/a%" + "25" * 20 + "2Fb",  # encoded too many times
    ],
)
def test_a_path_that_leaves_the_base_url_is_refused(path):
    with pytest.raises(ValueError, match=r"^path: "):
        checked_path(path)


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=40))
def test_any_text_as_a_path_raises_at_most_a_value_error(text):
    for path in (text, f"/{text}", f"{CREATE_ORDER}{text}"):
        try:
            kept = checked_path(path)
        except ValueError:
            continue
        assert kept is path


# --- how they are shown ---------------------------------------------------------------------------

ODD = st.text(st.sampled_from("/@:?#%,[]\\ \n&=+;ü\u2100\t1"), max_size=4)
SCHEMES = ("postgresql://", "postgres://", "postgresql:/", "", "nats://", "redis://", "http://", "https://")
READERS = (
    lambda address: pytest.fail(address) if "hunter" in public(address) else None,
    journal_at,
    PostgresJournal,
    normalised,
    proxy_and_authorization,
)


def why_not(read, address):
    """Return why ``address`` is refused, including all chained errors; empty if it is accepted."""
    try:
        read(address)
    except ValueError as error:
        return f"{error} {[error, error.__cause__, error.__context__]}"
    return ""


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(SCHEMES), ODD, ODD, st.sampled_from(("db", "db:5432", "[::1]", "a,b:1", "")), ODD)
def test_no_part_of_a_password_is_shown_for_a_mistyped_address(scheme, odd, odder, host, behind):
    """Without this, a password that contains a slash would be shown and sent to the name service."""
    for password in (f"hunter{odd}2{odder}hunter", f"{odd}hunter"):
        for address in (
            f"{scheme}bank:{password}@{host}/{behind}",
            f"{scheme}bank:{password}@{host}",
            f"host={host} user=bank password={password}",
        ):
            assert not [read for read in READERS if "hunter" in why_not(read, address)]


@each("address", ["redis://bank:hunter/2@db", "nats://bank:hunter@b@db:x", "nats://[hunter"])
def test_no_part_of_a_brokers_password_is_shown(address):
    assert "hunter" not in why_not(broker_at, address)


ENDS = ("", "/", "/payments", "/p%20q", "/p?sslmode=require&port=5", "?host=/run/pg")


@each("host", ["db", "db:5432", "[::1]:5432", "a:1,b:2", "", "db_1.example."])
@each("login", ["", "bank@", "bank:@", "bank:%40%2F%3A%3F%23@", "b%20k:a!$&'()*+,;=:~@"])
def test_a_valid_database_address_is_accepted(login, host):
    for end in ENDS:
        PostgresJournal(f"postgresql://{login}{host}{end}")


PROXY = "http://proxy.example:3128"


@each(
    ("proxy", "address", "login"),
    [
        (None, None, None),
        (PROXY, PROXY, None),
        (f"{PROXY}/", f"{PROXY}/", None),
        ("http://bank:hunter2@proxy.example:3128", PROXY, "bank:hunter2"),
        ("http://b%40nk:h%2Funt%3Aer@proxy.example:3128", PROXY, "b@nk:h/unt:er"),
        ("http://bank@proxy.example:3128", PROXY, "bank:"),
        ("http://:hunter2@proxy.example:3128", PROXY, ":hunter2"),
    ],
)
def test_a_proxys_password_moves_from_the_address_to_the_header(proxy, address, login):
    header = None if login is None else f"Basic {b64encode(login.encode()).decode()}"

    assert proxy_and_authorization(proxy) == (address, header)


NOT_AN_ADDRESS = "must be an address such as http://user:password@host:port"


@each(
    ("proxy", "why"),
    [
        *((wrong, NOT_AN_ADDRESS) for wrong in ("", "proxy.example", "//bank:hunter@proxy.example", 7)),
        *((f"{scheme}://bank:hunter@proxy.example", NOT_AN_ADDRESS) for scheme in ("socks5", "ftp")),
        *((f"http://bank:hunter@{wrong}", NOT_AN_ADDRESS) for wrong in ("", "proxy example", "proxy\n")),
        *((f"{PROXY}{end}", "must not contain a path") for end in ("/hunter", "?hunter", "#hunter")),
        ("http://bank:1/hunter@proxy.example", "must not contain a path"),
    ],
)
def test_an_invalid_proxy_is_refused_without_its_password(proxy, why):
    with pytest.raises(ValueError, match=f"^proxy: {re.escape(why)}") as caught:
        proxy_and_authorization(proxy)

    assert "hunter" not in str(caught.value)
