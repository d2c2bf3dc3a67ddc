"""The reference: every public name with its docstring, and links from every page that mentions the name."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import sys
from typing import Any

import attrs
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon import GoogleDocstring
from sphinx.pycode import ModuleAnalyzer
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective
from sphinx.util.inspect import object_description

PUBLIC = (
    "transfer_async",
    "transfer_async.journal",
    "transfer_async.worker",
    "transfer_async.desk",
    "transfer_async.sandbox",
    "transfer_async.testing",
    "transfer_async.testing.journal_contract",
    "transfer_async.testing.broker_contract",
    "transfer_async.integrations.faststream",
    "transfer_async.integrations.opentelemetry",
    "transfer_async.integrations.http",
)
"""The public modules; a module that does not exist is left out."""


def public_names(module: str) -> list[str]:
    """Return the ``__all__`` of a public module; an empty list if there is no such module."""
    try:
        return list(getattr(importlib.import_module(module), "__all__", ()))
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return []


def first_home(name: str) -> str | None:
    """Return the first public module that contains a name."""
    return next((module for module in PUBLIC if name in public_names(module)), None)


def own_names(module: str) -> list[str]:
    """Return the names in a public module that no earlier module exports for the same object."""
    earlier = PUBLIC[: PUBLIC.index(module)]
    return [name for name in public_names(module) if not any(_is_in(name, module, one) for one in earlier)]


def _is_in(name: str, module: str, other: str) -> bool:
    there = name in public_names(other)
    return there and getattr(sys.modules[other], name) is getattr(sys.modules[module], name)


class Names(SphinxDirective):
    """``.. names:: module`` with names below it; without names, all names that no earlier module exports."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Write one autodoc directive for each name."""
        module = self.arguments[0]
        names = " ".join(self.content).split()
        names = names or own_names(module)
        lines = [line for name in names for line in self._lines(module, name)]
        inside = nodes.container()
        self.state.nested_parse(StringList(lines, source=f"names of {module}"), 0, inside)
        return inside.children

    def _lines(self, module: str, name: str) -> list[str]:
        thing = getattr(importlib.import_module(module), name)
        if inspect.isclass(thing):
            kind = "autoexception" if issubclass(thing, BaseException) else "autoclass"
        else:
            kind = "autofunction" if inspect.isroutine(thing) else "autodata"
        options = ["   :no-value:"] if kind == "autodata" else []
        if inspect.isclass(thing) and issubclass(thing, enum.Enum):
            options = ["   :members:", "   :undoc-members:"]
        return [f".. {kind}:: {module}.{name}", *options, ""]


def _find_public(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element
) -> nodes.Node | None:
    """Resolve a reference to a private module's name to the public module that exports it."""
    if node.get("refdomain") != "py":
        return None
    target = str(node["reftarget"]).lstrip("~.")
    domain: Any = env.get_domain("py")
    parts = target.split(".")
    nearest = sorted(PUBLIC, key=lambda module: not target.startswith(f"{module}.") or module == PUBLIC[0])
    for count in (2, 1):
        for module in nearest:
            name = ".".join((module, *parts[-count:]))
            if name in domain.objects:
                return domain.resolve_xref(
                    env, node["refdoc"], app.builder, "obj", name, pending_xref(), content
                )
    return content if _needs_no_link(target) else None


def _needs_no_link(target: str) -> bool:
    """Return whether the target needs no link: it is private, from another library, or a piece of code."""
    first, dot, _ = target.partition(".")
    return not dot or first_home(first) is None


def _with_own_docstring(_app: Sphinx, what: str, name: str, thing: Any, _: Any, lines: list[str]) -> None:
    """Give a constant the docstring below its definition instead of its type's docstring."""
    if what == "data":
        lines[:] = docstring_of(name.rpartition(".")[2], thing)


def docstring_of(name: str, thing: Any) -> list[str]:
    """Return the docstring lines below a constant, from the module of the package that defines it."""
    for module in list(sys.modules):
        if module.startswith("transfer_async") and getattr(sys.modules[module], name, None) is thing:
            analyzer = ModuleAnalyzer.for_module(module)
            if found := analyzer.find_attr_docs().get(("", name)):
                return list(found)
    return []


_DEFAULT = re.compile(r"attr_dict\['(\w+)'\]\.default")
"""How attrs writes the default of a field in a generated ``__init__``."""


def with_defaults(kind: type, signature: str) -> str:
    """Return the signature of an attrs class with its defaults as source code."""
    fields = attrs.fields_dict(kind)
    for field in fields.values():
        if isinstance(field.default, attrs.Factory):  # type: ignore[arg-type] # typed as a function, is a class
            made = f"{getattr(field.default.factory, '__name__', '')}()"
            made = made if made[0].isalpha() else "..."
            place = rf"(\b{field.alias}(?:: [^=]*)?) = NOTHING"
            signature = re.sub(place, lambda found, made=made: f"{found[1]} = {made}", signature)
    return _DEFAULT.sub(lambda found: _as_written(fields[found[1]].default), signature)


def _as_written(value: object) -> str:
    if inspect.isroutine(value) or inspect.isclass(value):
        return value.__qualname__
    shown = object_description(value)
    return shown if isinstance(value, str) or "<" not in shown else "..."


def _with_defaults(
    _app: Sphinx, what: str, _name: str, thing: Any, _: Any, signature: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    if what not in ("class", "exception") or signature is None or not attrs.has(thing):
        return None
    return with_defaults(thing, signature), returns


class ResolveAmbiguousNames(SphinxPostTransform):
    """Resolve a name that several public modules export: to the current module, else to the first one."""

    default_priority = 4

    def run(self, **_: Any) -> None:
        """Prefix the name with its module."""
        for link in self.document.findall(pending_xref):
            name, module = link["reftarget"], link.get("py:module")
            if link.get("refdomain") == "py" and (first := first_home(name)) is not None:
                nearer = module if module in PUBLIC and name in public_names(module) else first
                link["reftarget"] = f"{nearer}.{name}"


class LinkNames(SphinxPostTransform):
    """Link a public name in the text of a page, such as ``TransferClient``, to the reference."""

    default_priority = 5

    def run(self, **_: Any) -> None:
        """Create the links, except in headings and in the reference itself."""
        if self.env.docname.startswith("reference/"):
            return
        for literal in list(self.document.findall(nodes.literal)):
            name = literal.astext().removesuffix("()")
            inside = literal.parent
            if "." in name or isinstance(inside, (nodes.title, nodes.reference, pending_xref)):
                continue
            if (module := first_home(name)) is not None:
                target = f"{module}.{name}"
                link = pending_xref(
                    "", literal.deepcopy(), refdomain="py", reftype="obj", reftarget=target, refexplicit=True
                )
                link["refdoc"], link["refwarn"] = self.env.docname, True
                literal.replace_self(link)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive, the transforms and the event handlers."""
    app.add_directive("names", Names)
    app.add_post_transform(ResolveAmbiguousNames)
    app.add_post_transform(LinkNames)
    app.connect("missing-reference", _find_public)
    app.connect("autodoc-process-docstring", _with_own_docstring)
    app.connect("autodoc-process-signature", _with_defaults)
    # Napoleon reads the text before a colon as a type. Our attribute docstrings are plain sentences.
    GoogleDocstring._consume_inline_attribute = lambda self: ("", self._dedent(self._consume_to_end()))  # type: ignore[method-assign] # Sphinx has no setting for it
    return {"parallel_read_safe": True}
