"""What is changed: by a form of a key's page, by somebody who may, if the key has not moved since."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from attrs import frozen

from transfer_async._models.errors import JournalFailed
from transfer_async._pipeline.decisions import DECISIONS, DecisionRow, approval
from transfer_async._pipeline.key_views import (
    ApprovalRequired,
    ApproverIsProposer,
    KeyChanged,
    KeyView,
    RecordSetAside,
    Sentence,
)
from transfer_async._pipeline.operators import Operators
from transfer_async.desk import labels
from transfer_async.desk.auth import Operator, Role, is_current, since
from transfer_async.desk.views import SharedHandlers, address, fields_of, key_page, operator_at
from transfer_async.journal.model import FOUR_EYES, KeyState
from transfer_async.journal.operator_transitions import Demand, Waive


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


class Actions:
    """The forms that change something.

    Attributes:
        by_name: what answers each.
    """

    def __init__(self, office: SharedHandlers) -> None:
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
        four_eyes = (await operators.four_eyes()).demanded
        if not self._is_current(form, view, four_eyes=four_eyes):
            return await self._stale(form)
        try:
            done = await change(operators, view, form, four_eyes)
        except (KeyChanged, ApprovalRequired):
            return await self._stale(form)
        except RecordSetAside as error:
            self._office.board.changed(await operators.view(form["key"]))
            return await self._refused(form, labels.sentence(error), status=409)
        except ApproverIsProposer:
            why = "You proposed it: somebody else approves it. Names that look alike count as one person's."
            return await self._refused(form, why, status=403)
        except ValueError as error:
            return await self._refused(form, labels.sentence(error), status=422)
        with contextlib.suppress(JournalFailed, ValueError):  # the change is on record, whatever fails now
            self._office.board.changed(await operators.view(view.key))
        raise web.HTTPSeeOther(address(view.key, done=done))

    def _is_current(self, form: Form, view: KeyView, *, four_eyes: bool) -> bool:
        name, holds = form.operator.name, self._office.holds
        return is_current(form["stamp"], view, name, four_eyes=four_eyes, holds=holds)

    async def _stale(self, form: Form) -> web.Response:
        operators = self._office.operators
        view = await operators.view(form["key"])
        self._office.board.changed(view)
        history = await operators.history(view.key)
        steps = since(form["stamp"], view, history)
        problem = Sentence("Nothing was changed: the key has moved meanwhile")
        if not steps:
            problem = Sentence(
                "Nothing was changed. This page is out of date, or was made for somebody else."
            )
        approved = approval(history)
        if form.name in ("approve", "withdraw") and approved in steps and approved is not None:
            who = "you" if approved.by == form.operator.name else approved.by or "somebody"
            at = labels.time(labels.moment(approved.at))
            problem = Sentence(f"Nothing was changed: {{}} approved it at {at}", (who,))
        four_eyes = (await operators.four_eyes()).demanded
        if self._is_current(form, view, four_eyes=not four_eyes):
            why = "two persons are needed now" if four_eyes else "one person is enough now"
            problem = Sentence(f"Nothing was changed: {why}")
            rule = await operators.history(FOUR_EYES)
            steps = tuple(step for step in rule if step.move in (Demand.name, Waive.name))[-1:]
        return await self._refused(form, problem, status=409, since=steps)

    async def _refused(
        self, form: Form, problem: str | Sentence, *, status: int, **more: Any
    ) -> web.Response:
        view = await self._office.operators.view(form["key"])
        if status == 422:
            four_eyes = (await self._office.operators.four_eyes()).demanded
            if not self._is_current(form, view, four_eyes=four_eyes):
                return await self._stale(form)  # that is why it was refused
        tried = {"tried": form.name, "reason": form["reason"], "order_id": form["order_id"]}
        return await key_page(
            self._office, form.operator, view, status=status, problem=problem, **tried, **more
        )


# --- what each form does ------------------------------------------------------------------------

_Change = Callable[[Operators, KeyView, Form, bool], Awaitable[str]]
"""Makes one change, as a proposal under dual control; returns its name for `labels.notice`."""


def _deciding(row: DecisionRow) -> _Change:
    """Return what the form of a decision does: it makes the decision, or proposes it under dual control."""

    async def decide(operators: Operators, view: KeyView, form: Form, four_eyes: bool) -> str:
        if row.frees_key and "certain" not in form.fields:
            raise ValueError("say that you are certain that no order exists")
        said: dict[str, Any] = {"seen": view.moves, **form.said, "undone": "undone" in form.fields}
        order_id = form["order_id"] if row.names_order else None
        if four_eyes:
            await operators.propose(view.key, row.decision, order_id=order_id, **said)
            return "proposed"
        await operators.decide(view.key, row.decision, order_id=order_id, **said)
        # Nothing else was to be done for a corrupt record whose key has ended.
        ended = KeyState.FREE if row.frees_key else KeyState.CREATED
        is_ended = row.applies_to is KeyState.IN_DOUBT and view.state is ended
        return "setaside" if is_ended else row.done

    return decide


async def _approve(operators: Operators, view: KeyView, form: Form, _: bool) -> str:
    await operators.approve(view.key, proposal=form["proposal"], **form.said)
    return "approved"


async def _withdraw(operators: Operators, view: KeyView, form: Form, _: bool) -> str:
    await operators.withdraw(view.key, proposal=form["proposal"], **form.said)
    return "withdrawn"


_CHANGING, _APPROVING = frozenset({Role.CHANGE}), frozenset({Role.APPROVE})

_CHANGES: dict[str, tuple[frozenset[Role], _Change]] = {
    **{row.name: (_CHANGING, _deciding(row)) for row in DECISIONS if row.title},
    "approve": (_APPROVING, _approve),
    "withdraw": (_CHANGING | _APPROVING, _withdraw),
}
"""Each form: the roles of which one is required, and what it does."""
