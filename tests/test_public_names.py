"""The public names, their signatures, and the cost of importing them."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import transfer_async
from tests.support.cases import each
from transfer_async._models import errors
from transfer_async._models.errors import TransferError
from transfer_async.journal import model

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "transfer_async"

# --- the table of contents ----------------------------------------------------------------------


def promised():
    """Return the names in `public_names.txt`, by public module."""
    lines = (Path(__file__).parent / "public_names.txt").read_text(encoding="utf-8").splitlines()
    names = {}
    for line in filter(None, lines[1:]):
        if line.endswith(":"):
            names[line[:-1]] = here = []
        else:
            here += line.split()
    return names


PROMISED = promised()


@each("module", [*PROMISED])
def test_a_public_module_has_exactly_the_listed_names(module):
    there = importlib.import_module(module)

    assert list(there.__all__) == PROMISED[module]
    assert [name for name in there.__all__ if not hasattr(there, name)] == []


def test_only_public_modules_have_a_list_of_names():
    """A package or integration whose path has no underscore is public, so it must list its names."""
    public = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in PACKAGE.rglob("*.py")
        if path.name == "__init__.py" or path.parent.name == "integrations"
        if "__all__" in path.read_text(encoding="utf-8")
    }

    assert public == set(PROMISED)


def test_a_public_module_imports_no_other_name():
    modules = {path.stem for path in PACKAGE.iterdir()}
    # "@" marks pytest's own names.
    names = {name for name in vars(transfer_async) if not name.startswith(("_", "@"))}

    assert names - modules == set(transfer_async.__all__) - modules


def test_every_error_is_public():
    kinds = {
        name for name, one in vars(errors).items() if inspect.isclass(one) and issubclass(one, TransferError)
    }

    assert kinds <= set(transfer_async.__all__)


def test_the_public_module_contains_only_imports_and_assignments():
    tree = ast.parse((PACKAGE / "_public.py").read_text(encoding="utf-8"))
    docstring, *rest = tree.body

    assert isinstance(docstring, ast.Expr)
    assert {type(one) for one in rest} == {ast.ImportFrom, ast.Assign}


@each("name", transfer_async.__all__)
def test_each_name_exists_and_has_a_docstring(name):
    one = getattr(transfer_async, name)

    assert one is not None
    if inspect.isclass(one) or inspect.isfunction(one):
        assert inspect.getdoc(one)


@each("package", ["transfer_async", "transfer_async.testing"])
def test_a_name_that_is_not_public_raises_attribute_error(package):
    there = importlib.import_module(package)

    assert set(there.__all__) <= set(dir(there))
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nope'"):
        _ = there.nope


# --- what it costs to import --------------------------------------------------------------------


def test_the_package_imports_nothing_that_it_does_not_need():
    """Heavy modules are imported with the first client; extras and the sandbox, when they are used."""
    code = """if True:
        import sys, transfer_async.testing
        print(*sys.modules)
        from transfer_async import *
        print(*sys.modules)
        TransferClient("http://127.0.0.1:1", "token")
        print(*sys.modules)
    """
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    package, names, client = (set(line.split()) for line in done.stdout.splitlines())
    unwanted = {"typer", "rich", "click", "faststream", "opentelemetry", "asyncpg", "aiohttp.web", "pytest"}
    ours = re.compile(r"transfer_async\.(sandbox|_cli\.)")

    assert {"aiohttp", "attrs", "cattrs", "tenacity", "pytest"} & package == set()
    assert {name for name in names if name in unwanted or ours.match(name)} == set()
    assert {"cattrs", "tenacity"} <= client


# --- public signatures --------------------------------------------------------------------------

SIGNATURES = Path(__file__).with_name("public_signatures.txt")
UPDATE = "python -m tests.test_public_names"


def function_line(node):
    """Return the signature of a function as one line of source, the same on every Python version."""
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    marks = "".join(
        f"@{one.id} "
        for one in node.decorator_list
        if isinstance(one, ast.Name) and one.id in ("property", "classmethod", "staticmethod")
    )
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{marks}{kind} {node.name}({ast.unparse(node.args)}){returns}"


def member_lines(body):
    """Yield the public fields, constants and methods of a class, and ``__init__``."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            line, name = function_line(node), node.name
        elif isinstance(node, (ast.AnnAssign, ast.Assign)):
            line = ast.unparse(node)
            name = re.split(r"\W", line)[0]
        else:
            continue
        if name == "__init__" or not name.startswith(("_", "test_")):
            yield line


@cache
def definitions(module):
    """Return the definitions of the classes and functions of a module, by name."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in ast.walk(tree) if hasattr(node, "name")}


def definition(one):
    """Return the definition of a class or a function."""
    return definitions(one.__module__)[one.__name__]


def signature_lines(one, name, public):
    """Yield the line of a public name, then the lines of its members and of its private base classes."""
    if inspect.isclass(one):
        ours = [
            kind
            for kind in one.__mro__
            if kind.__module__.startswith("transfer_async") and (kind is one or kind not in public)
        ]
        bases = ", ".join(base.__name__ for base in one.__bases__ if base is not object)
        yield f"class {name}({bases})"
        for kind in ours:
            yield from (f"    {line}" for line in member_lines(definition(kind).body))
    else:
        yield function_line(definition(one)) if inspect.isfunction(one) else name


def public_signatures():
    """Return the text of `public_signatures.txt`. Each name appears in the first module that exports it."""
    lines = [f"# Signatures of all public names. A change of this file changes the API: {UPDATE}"]
    homes = {}
    for module in PROMISED:
        for name in PROMISED[module]:
            one = getattr(importlib.import_module(module), name)
            homes.setdefault(name if not callable(one) else one, (module, name, one))
    public = {one for _, _, one in homes.values() if inspect.isclass(one)}
    for module in PROMISED:
        lines += ["", f"{module}:", ""]
        for home, name, one in homes.values():
            if home == module:
                lines += signature_lines(one, name, public)
    definitions.cache_clear()  # or every later garbage collection would traverse the syntax trees
    return "\n".join(lines) + "\n"


def test_the_public_signatures_are_those_of_the_list():
    """If you intend to change the API, add that to the changelog, and run UPDATE."""
    assert public_signatures() == SIGNATURES.read_text(encoding="utf-8")


def test_public_signatures_use_no_librarys_type_except_the_borrowed_session():
    libraries = r"\b(?:aiohttp|tenacity|cattrs|multidict|yarl|msgspec)\.\w+"

    found = set(re.findall(libraries, SIGNATURES.read_text(encoding="utf-8")))
    assert found == {"aiohttp.ClientSession", "msgspec.field"}  # the latter is no type, but sets a default


def test_the_defaults_that_decide_when_a_hold_may_be_released_are_those_of_the_contract():
    assert (model.SETTLE_AFTER, model.LEASE, model.ABANDONED_SETTLE_AFTER) == (300.0, 60.0, 86_400.0)


def test_the_package_is_marked_as_typed():
    assert (PACKAGE / "py.typed").exists()


if __name__ == "__main__":
    SIGNATURES.write_text(public_signatures(), encoding="utf-8")
