"""What is changed: by a form of a key's page, by somebody who may, if the key has not moved since."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from attrs import frozen

from transfer_async._pipeline.key_views import KeyView
from transfer_async._pipeline.operators import Operators
from transfer_async._pipeline.refusals import FourEyesNeeded, Moved, SamePerson
from transfer_async.desk import words
from transfer_async.desk.office import Office, address, fields_of, key_page, operator_at
from transfer_async.desk.stamp import is_current, since
from transfer_async.desk.who import Operator, Role
from transfer_async.journal.proposal import Decision


@frozen(kw_only=True)
class Form:
    """What somebody sent.

    Args:
        name: of the form.
        operator: who sent it.
        fields: what stood in it.
    """

    name: str
    operator: Operator
    fields: dict[str, str]

    def __getitem__(self, name: str) -> str:
        """A field; empty if it was not sent."""
        return self.fields.get(name, "")

    @property
    def said(self) -> dict[str, str]:
        """Who says so, and why."""
        return {"by": self.operator.name, "reason": self["reason"]}


class Changes:
    """The forms that change something.

    Attributes:
        by_name: what answers each.
    """

    def __init__(self, office: Office) -> None:
        self._office = office
        self.by_name: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
            name: self._answering(name, roles, change) for name, (roles, change) in _CHANGES.items()
        }

    def _answering(
        self, name: str, roles: frozenset[Role], change: _Change
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            operator = operator_at(request)
            if not operator.roles & roles:
                raise web.HTTPForbidden
            return await self._answered(
                Form(name=name, operator=operator, fields=await fields_of(request)), change
            )

        return answer

    async def _answered(self, form: Form, change: _Change) -> web.StreamResponse:
        operators = self._office.operators
        try:
            view = await operators.view(form["key"])
        except ValueError:
            raise web.HTTPNotFound from None
        if not is_current(form["stamp"], view, form.operator.name):
            return await self._stale(form)
        try:
            done = await change(operators, view, form)
        except (Moved, FourEyesNeeded):
            return await self._stale(form)
        except SamePerson:
            return await self._refused(form, "You proposed it: somebody else approves it.", status=403)
        except ValueError as error:
            return await self._refused(form, words.sentence(error), status=422)
        self._office.board.changed(await operators.view(view.key))
        raise web.HTTPSeeOther(address(view.key, done=done))

    async def _stale(self, form: Form) -> web.Response:
        operators = self._office.operators
        view = await operators.view(form["key"])
        self._office.board.changed(view)
        steps = since(form["stamp"], view, await operators.history(view.key))
        return await self._refused(
            form, "Nothing was changed: the key has moved meanwhile", status=409, since=steps
        )

    async def _refused(self, form: Form, problem: str, *, status: int, **more: Any) -> web.Response:
        view = await self._office.operators.view(form["key"])
        if status == 422 and not is_current(form["stamp"], view, form.operator.name):
            return await self._stale(form)  # that is why it was refused
        tried = {"tried": form.name, "reason": form["reason"], "order_id": form["order_id"]}
        return await key_page(
            self._office, form.operator, view, status=status, problem=problem, **tried, **more
        )


# --- what each does -----------------------------------------------------------------------------

_Change = Callable[[Operators, KeyView, Form], Awaitable[str]]
"""Makes one change; gives back what is told of it, of `words.DONE`."""


async def _decide(operators: Operators, view: KeyView, decision: Decision, *, done: str, **said: Any) -> str:
    """``decision`` itself; or, where four eyes are demanded, its proposal."""
    if (await operators.four_eyes()).demanded:
        await operators.propose(view.key, decision, seen=view.moves, **said)
        return "proposed"
    acts: dict[Decision, Callable[..., Awaitable[object]]] = {
        Decision.RESOLVE: operators.resolve,
        Decision.REFUTE: operators.refute,
        Decision.AMEND: operators.amend,
    }
    await acts[decision](view.key, seen=view.moves, **said)
    return done


async def _resolve(operators: Operators, view: KeyView, form: Form) -> str:
    said = {**form.said, "order_id": form["order_id"], "undone": "undone" in form.fields}
    return await _decide(operators, view, Decision.RESOLVE, done="resolved", **said)


async def _refute(operators: Operators, view: KeyView, form: Form) -> str:
    if "certain" not in form.fields:
        raise ValueError("say that you are certain: the hold will be released")
    said = {**form.said, "undone": "undone" in form.fields}
    return await _decide(operators, view, Decision.REFUTE, done="refuted", **said)


async def _amend(operators: Operators, view: KeyView, form: Form) -> str:
    return await _decide(
        operators, view, Decision.AMEND, done="amended", order_id=form["order_id"], **form.said
    )


async def _take_back(operators: Operators, view: KeyView, form: Form) -> str:
    return await _decide(operators, view, Decision.AMEND, done="takenback", order_id=None, **form.said)


async def _approve(operators: Operators, view: KeyView, form: Form) -> str:
    await operators.approve(view.key, proposal=form["proposal"], **form.said)
    return "approved"


async def _withdraw(operators: Operators, view: KeyView, form: Form) -> str:
    await operators.withdraw(view.key, proposal=form["proposal"], **form.said)
    return "withdrawn"


_CHANGING, _APPROVING = frozenset({Role.CHANGE}), frozenset({Role.APPROVE})

_CHANGES: dict[str, tuple[frozenset[Role], _Change]] = {
    "resolve": (_CHANGING, _resolve),
    "refute": (_CHANGING, _refute),
    "amend": (_CHANGING, _amend),
    "takeback": (_CHANGING, _take_back),
    "approve": (_APPROVING, _approve),
    "withdraw": (_CHANGING | _APPROVING, _withdraw),
}
"""Each form: by any of which roles, and what it does."""
