"""A parsed HTML page, and the headers of cross-site requests."""

from html.parser import HTMLParser

ELSEWHERE = [
    {},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {"Sec-Fetch-Site": "Same-Origin"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://{host}"},
    {"Origin": "null"},
    {"Origin": "http://evil.example"},
    {"Origin": "http://{host}.evil.example"},
    {"Origin": "http://evil.example/{host}"},
    {"Origin": "http://["},
    {"Referer": "http://{host}/"},
]
"""Headers that a request from a page of this host never has."""


class Page(HTMLParser):
    """An HTML page, parsed into its forms, links, tags and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.forms: dict[str, dict[str, str]] = {}
        self.links: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._texts: list[str] = []
        self._form: dict[str, str] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append((tag, values))
        self._texts.append("" if tag == "bdi" else " ")
        if tag == "form":
            self._form = self.forms.setdefault(values.get("action") or "", {})
        elif tag == "input" and self._form is not None and values.get("type") != "checkbox":
            self._form[values.get("name") or ""] = values.get("value") or ""
        elif tag == "a":
            self.links.append(values.get("href") or "")

    def handle_endtag(self, tag: str) -> None:
        self._texts.append("" if tag == "bdi" else " ")
        if tag == "form":
            self._form = None

    def handle_data(self, data: str) -> None:
        self._texts.append(data)

    @property
    def text(self) -> str:
        """The page's text, with one space between words."""
        return " ".join("".join(self._texts).split())
