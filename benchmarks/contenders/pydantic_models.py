"""Our models in pydantic, field by field: amounts as `Decimal`, times aware."""

from __future__ import annotations

import types
import typing
from datetime import datetime
from typing import Any, ForwardRef

import attrs
from pydantic import AwareDatetime, BaseModel, Field, create_model

from transfer_async._models import requests, responses

_WIRE_NAMES = {
    "posters_beneficiary": "postersBeneficiary",
    "external_user": "externalUser",
    "user_options": "userOptions",
    "confirmed_matches": "confirmedMatches",
    "extra_order_details": "extraOrderDetails",
    "creator": "createdBy",
}


def _twin(cls: Any) -> type[BaseModel]:
    """Return a pydantic model with the fields and types of an attrs class; references stay unresolved."""
    hints = typing.get_type_hints(cls)
    fields: dict[str, Any] = {
        one.name: (
            _kind(hints[one.name]),
            Field(... if one.default is attrs.NOTHING else None, alias=_WIRE_NAMES.get(one.name, one.name)),
        )
        for one in attrs.fields(cls)
        if one.name != "unread"  # ours alone
    }
    return create_model(cls.__name__, **fields)


def _kind(hint: Any) -> Any:
    """Return ``hint`` with each of our classes replaced by its pydantic model."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.Union[tuple(_kind(one) for one in typing.get_args(hint))]  # noqa: UP007 - of a tuple
    if typing.get_origin(hint) is tuple:
        return tuple[_kind(typing.get_args(hint)[0]), ...]  # type: ignore[misc] # made at run time
    if hint is datetime:
        return AwareDatetime
    return ForwardRef(hint.__name__) if isinstance(hint, type) and attrs.has(hint) else hint


_TWINS = {
    cls.__name__: _twin(cls)
    for cls in (
        *(responses.UserOption, responses.Currency, responses.User, responses.ExternalUser),
        *(responses.ExternalOrder, responses.Order, requests.NewExternalOrder, requests.NewOrder),
    )
}
for _model in _TWINS.values():
    _model.model_rebuild(_types_namespace=_TWINS)

PydanticOrder = _TWINS["Order"]
PydanticNewOrder = _TWINS["NewOrder"]
