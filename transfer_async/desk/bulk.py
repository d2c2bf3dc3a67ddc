"""Proposals for several keys on the list at once.

Each proposal states that a key's order exists, and must be approved by another person. The pages for several
keys never record a decision themselves.
"""

from __future__ import annotations

import contextlib
import csv
from collections import Counter
from collections.abc import Iterable
from typing import Any

from aiohttp import web
from attrs import frozen

from transfer_async._models.errors import JournalFailed
from transfer_async._pipeline.decisions import row_of
from transfer_async._pipeline.key_views import checked_text
from transfer_async.desk.auth import Operator, Role, is_current, token_of
from transfer_async.desk.pending_keys import PER_PAGE
from transfer_async.desk.views import Shared, form_of, operator_at, problem_text
from transfer_async.journal.model import Decision

_RESOLVE = row_of(Decision.RESOLVE, "")


@frozen
class BulkProposals:
    """The two steps of proposing several orders: enter an order id for each key, then propose all of them."""

    _shared: Shared

    async def select(self, request: web.Request) -> web.Response:
        """Show the selected keys, each with a field for its order id, filled in from any pasted text."""
        operator, form = _may_propose(request), await form_of(request)
        found = dict(_pasted(form.get("found", "")))
        typed = dict(zip(form.getall("key", []), form.getall("order_id", []), strict=False))
        keys = list(dict.fromkeys(form.getall("key", [])))
        ids = {key: found.get(key) or typed.get(key, "") for key in keys}
        return await self._page(operator, ids, reason=form.get("reason", ""))

    async def propose(self, request: web.Request) -> web.Response:
        """Propose each order id that was entered; if some are refused, show their keys again."""
        operator, form = _may_propose(request), await form_of(request)
        columns = [form.getall(name, []) for name in ("key", "stamp", "order_id")]
        reason = form.get("reason", "")
        if len({len(column) for column in columns}) > 1:
            raise web.HTTPBadRequest
        rows = [(key, stamp, order_id.strip()) for key, stamp, order_id in zip(*columns, strict=True)]
        ids = {key: order_id for key, _, order_id in rows}
        try:
            reason = checked_text("reason", reason)
        except ValueError as error:
            return await self._page(operator, ids, reason=reason, wrong=problem_text(error))
        twice = {order_id for order_id, number in Counter(ids.values()).items() if number > 1}
        problems: dict[str, str] = {}
        for key, stamp, order_id in rows:
            try:
                if order_id in twice and order_id:
                    raise ValueError("order_id: several keys have the same order id")  # noqa: TRY301 - as `propose` refuses it
                if order_id:
                    await self._propose(operator, key, stamp, order_id, reason)
            except JournalFailed as error:
                problems[key] = f"{error}. Look at the key before you propose it again."
            except ValueError as error:
                problems[key] = problem_text(error)
        if not problems:
            raise web.HTTPSeeOther("./?proposal=mine")
        made = [(key, order_id) for key, order_id in ids.items() if order_id and key not in problems]
        left = {key: ids[key] for key in problems}
        return await self._page(operator, left, reason=reason, problems=problems, made=made)

    async def _propose(self, operator: Operator, key: str, stamp: str, order_id: str, reason: str) -> None:
        operators, holds = self._shared.operators, self._shared.holds
        view, four_eyes = await operators.view(key), (await operators.four_eyes()).demanded
        if not is_current(stamp, view, operator.name, four_eyes=four_eyes, holds=holds):
            raise ValueError("key: has changed since this page was rendered, so nothing was proposed")
        by, seen = operator.name, view.version
        await operators.propose(key, Decision.RESOLVE, order_id=order_id, by=by, reason=reason, seen=seen)
        with contextlib.suppress(JournalFailed, ValueError):  # the proposal is on record, even if this fails
            self._shared.cache.changed(await operators.view(key))

    async def _page(
        self, operator: Operator, ids: dict[str, str], *, problems: dict[str, str] | None = None, **more: Any
    ) -> web.Response:
        if len(ids) > PER_PAGE:
            raise web.HTTPBadRequest
        operators, four_eyes = self._shared.operators, (await self._shared.operators.four_eyes()).demanded
        rows, left_out = [], []
        for key, order_id in ids.items():
            problem = (problems or {}).get(key)
            try:
                view = await operators.view(key)
            except ValueError:
                continue
            if view.proposal is not None or view.is_sealed or not _RESOLVE.is_offered(view):
                left_out.append((key, problem))
                continue
            token = token_of(view, operator.name, four_eyes=four_eyes, holds=self._shared.holds)
            rows.append({"view": view, "token": token, "order_id": order_id, "problem": problem})
        given = {"rows": rows, "left_out": left_out, "wrong": None, "made": (), **more}
        status = 422 if problems or given["wrong"] else 200
        return self._shared.answer("bulk", status=status, operator=operator, **given)


def _may_propose(request: web.Request) -> Operator:
    operator = operator_at(request)
    if not operator.may(Role.CHANGE):
        raise web.HTTPForbidden
    return operator


def _pasted(text: str) -> Iterable[tuple[str, str]]:
    """Yield the keys and order ids from lines such as ``payment-1,tx-1``, which may contain more columns."""
    for row in csv.reader(text.replace("\t", ",").splitlines()):
        cells = [cell.strip() for cell in row]
        order_id = next((cell for cell in cells[1:] if cell.startswith("tx-")), None)
        if order_id is not None:
            yield cells[0], order_id
