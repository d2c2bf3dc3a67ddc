"""pydantic models with the same fields and types as ours: amounts are `Decimal`, times are timezone-aware."""

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


def _model_of(cls: Any) -> type[BaseModel]:
    """Return a pydantic model with the fields and types of an attrs class.

    References to other models are resolved later, by ``model_rebuild``."""
    hints = typing.get_type_hints(cls)
    fields: dict[str, Any] = {
        field.name: (
            _type_of(hints[field.name]),
            Field(
                ... if field.default is attrs.NOTHING else None, alias=_WIRE_NAMES.get(field.name, field.name)
            ),
        )
        for field in attrs.fields(cls)
        if field.name != "unread"  # a private field of ours
    }
    return create_model(cls.__name__, **fields)


def _type_of(hint: Any) -> Any:
    """Replace each of our classes in a type hint with its pydantic model."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.Union[tuple(_type_of(field) for field in typing.get_args(hint))]  # noqa: UP007 - built from a tuple
    if typing.get_origin(hint) is tuple:
        return tuple[_type_of(typing.get_args(hint)[0]), ...]  # type: ignore[misc] # built at run time
    if hint is datetime:
        return AwareDatetime
    return ForwardRef(hint.__name__) if isinstance(hint, type) and attrs.has(hint) else hint


_MODELS = {
    cls.__name__: _model_of(cls)
    for cls in (
        *(responses.UserOption, responses.Currency, responses.User, responses.ExternalUser),
        *(responses.ExternalOrder, responses.Order, requests.NewExternalOrder, requests.NewOrder),
    )
}
for _model in _MODELS.values():
    _model.model_rebuild(_types_namespace=_MODELS)

PydanticOrder = _MODELS["Order"]
PydanticNewOrder = _MODELS["NewOrder"]
