"""What is public, what it costs to import, and that imports point one way."""

import ast
import functools
import inspect
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import transfer_async
from tests.cases import each
from transfer_async.errors import TransferError

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "transfer_async"

# --- the table of contents ----------------------------------------------------------------------

CONTRACT = {
    # models
    *("NewOrder", "NewExternalOrder", "Order", "User", "ExternalUser", "ExternalOrder", "Currency"),
    "UserOption",
    # errors
    *("TransferError", "InvalidOrder", "PreflightFailed", "HoldFailed", "HoldRequired"),
    *("BeneficiaryNotVerified", "ConnectionFailed", "TokenUnavailable", "Expired", "Refused", "Unauthorized"),
    *("RateLimited", "Refuted", "OutcomeUnknown", "UnreadableOrder", "AlreadyCreated", "KeyConflict"),
    "KeyBusy",
    *("JournalFailed", "ClientClosed", "OpenElsewhere", "ServiceFailed"),
    # the client
    *("TransferClient", "PersonName", "KeyRecord", "OrderRequest", "OrderResult", "RecoveryReport"),
    "Timeouts",
    # hooks
    *("PreflightHook", "FundsHold", "OrderIntent"),
    # retry
    *("RetryPolicy", "RetryBudget", "NO_ORDER"),
    # events
    *("Claimed", "HookPassed", "HookUndone", "UndoOwed", "AttemptStarted", "AttemptFailed", "RetryScheduled"),
    *("OrderCreated", "OrderRefused", "NotSent", "WentInDoubt", "Resolved", "DuplicateSuspected"),
    "OrderUnrecorded",
    # the journal
    *("MemoryJournal", "Operators", "Doubt", "Step"),
}


def by_case(name):
    """The order that the linter keeps: constants, then classes, then functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_the_names_are_sorted_and_each_is_there_once():
    assert transfer_async.__all__ == sorted(set(transfer_async.__all__), key=by_case)


def test_every_name_of_the_contract_is_there():
    assert CONTRACT - set(transfer_async.__all__) == set()


def test_no_other_name_is_imported_there():
    modules = {path.stem for path in PACKAGE.iterdir()}
    names = {name for name in vars(transfer_async) if not name.startswith(("_", "@"))}  # "@": pytest's own

    assert names - modules == set(transfer_async.__all__) - modules


def test_every_error_is_public():
    kinds = {
        name
        for name, one in vars(transfer_async.errors).items()
        if inspect.isclass(one) and issubclass(one, TransferError)
    }

    assert kinds <= set(transfer_async.__all__)


def test_there_is_no_logic_in_the_table_of_contents():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    docstring, *rest = tree.body

    assert isinstance(docstring, ast.Expr)
    assert {type(one) for one in rest} == {ast.ImportFrom, ast.Assign}


@each("name", transfer_async.__all__)
def test_each_name_is_there_and_says_what_it_is(name):
    one = getattr(transfer_async, name)

    assert one is not None
    if inspect.isclass(one) or inspect.isfunction(one):
        assert inspect.getdoc(one)


# --- what it costs to import --------------------------------------------------------------------


def test_importing_it_imports_neither_an_extra_nor_the_sandbox():
    code = "import sys, transfer_async; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    there = set(done.stdout.split())
    unwanted = {"typer", "rich", "click", "faststream", "opentelemetry", "asyncpg", "aiohttp.web", "pytest"}

    assert there & unwanted == set()
    assert {name for name in there if name.startswith("transfer_async.sandbox")} == set()
    assert {name for name in there if is_command_line(name)} == set()


def test_the_sandbox_does_not_import_the_clients_reading_of_the_wire():
    # The package itself comes with any of its modules; what counts is what the sandbox asks for.
    asked = {one for path in PACKAGE.glob("sandbox/*.py") for one in imports_of(path, everywhere=True)}

    assert asked
    assert {name for name in asked if not name.startswith("transfer_async.sandbox")} == set()


# --- imports point one way ----------------------------------------------------------------------


def module_of(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


MODULES = {module_of(path): path for path in PACKAGE.rglob("*.py")}


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


def imports_of(path, *, everywhere=False):
    """Our modules that a file imports when it is imported itself; or ``everywhere`` in it."""
    tree = tree_of(path)
    nodes = ast.walk(tree) if everywhere else at_import(tree)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = inside & set(MODULES)
            found |= modules if len(modules) == len(inside) else {*modules, node.module}
    return {name for name in found if name.partition(".")[0] == "transfer_async"}


def at_import(node):
    """The statements that run on import: not those in functions, nor those for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) or for_types:
            continue
        yield child
        yield from at_import(child)


GRAPH = {name: imports_of(path) for name, path in MODULES.items()}


def reachable(name):
    """All of our modules that come with one."""
    seen, waiting = set(), [name]
    while waiting:
        for one in GRAPH[waiting.pop()] - seen:
            seen.add(one)
            waiting.append(one)
    return seen


def test_no_imports_go_round_in_circles():
    order = list(TopologicalSorter(GRAPH).static_order())

    assert set(order) >= set(GRAPH)


def test_errors_know_nobody():
    assert GRAPH["transfer_async.errors"] == set()


def test_models_know_nobody_above_them():
    checks = {f"transfer_async.{name}" for name in ("checks", "errors", "keys")}

    assert reachable("transfer_async.models") <= checks


@each("name", ["answers", "retry", "events", "clock", "addresses", "auth", "wire", "transport"])
def test_what_lies_below_the_pipeline_does_not_know_it(name):
    above = {
        f"transfer_async.{one}" for one in ("client", "create_order", "recovery", "doubt", "context", "batch")
    }

    assert reachable(f"transfer_async.{name}") & above == set()


def test_nobody_but_the_command_line_imports_the_client_inside_the_package():
    users = {name for name, found in GRAPH.items() if "transfer_async.client" in found}

    assert {name for name in users if not is_command_line(name)} == {"transfer_async"}


def is_command_line(name):
    top = ".".join(name.split(".")[:2])
    return top in {f"transfer_async.{one}" for one in ("cli", "_cli", "__main__", "demo")}


def test_only_the_command_line_imports_the_sandbox():
    users = {
        name
        for name, path in MODULES.items()
        if any(one.startswith("transfer_async.sandbox") for one in imports_of(path, everywhere=True))
    }

    assert {
        name for name in users if not is_command_line(name) and not name.startswith("transfer_async.sandbox")
    } == set()


# --- public signatures --------------------------------------------------------------------------


def signatures():
    """Every public callable, its name and its signature."""
    for name in transfer_async.__all__:
        one = getattr(transfer_async, name)
        if not callable(one):
            continue
        yield name, str(inspect.signature(one))
        for inside, member in vars(one).items() if inspect.isclass(one) else ():
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if inspect.isfunction(function) and not inside.startswith("_"):
                yield f"{name}.{inside}", str(inspect.signature(function))


@each(("name", "signature"), [*signatures()])
def test_no_public_signature_shows_a_librarys_type_but_the_borrowed_session(name, signature):
    told = signature.replace("aiohttp.ClientSession", "")

    assert not any(
        library in told for library in ("aiohttp", "tenacity", "cattrs", "multidict", "yarl", "msgspec")
    )


def test_a_clients_signature_is_the_contracts():
    parameters = inspect.signature(transfer_async.TransferClient).parameters
    keywords = [name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY]

    assert list(parameters)[:2] == ["base_url", "token"]
    assert {
        *("hooks", "journal", "scope", "retry", "timeouts", "resolve", "settle_after", "lease", "observers"),
        *("session", "ssl", "proxy", "max_response_bytes"),
    } <= set(keywords)
    assert (parameters["settle_after"].default, parameters["lease"].default) == (300.0, 60.0)
    assert parameters["max_response_bytes"].default == 1 << 20


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").exists()
