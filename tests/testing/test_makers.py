"""The functions that make complete sample orders, responses and users."""

from decimal import Decimal

import pytest

from transfer_async import InvalidOrder, Order, OrderState, UnreadableOrder
from transfer_async.testing import make_intent, make_new_order, make_order, make_user


def test_a_new_orders_other_fields_follow_from_the_changed_ones():
    new = make_new_order(matcher_amount="20.00", poster_username="new.customer@example.com")

    assert (new.poster_amount, new.poster_username) == (Decimal("30000.00"), "new.customer@example.com")
    assert make_new_order(poster_amount="150000.00") == make_new_order()
    with pytest.raises(InvalidOrder, match="poster_amount"):
        make_new_order(poster_amount="1.00")


def test_a_made_response_is_complete_and_matches_the_given_order():
    new = make_new_order(poster_recipient_username="somebody.else@example.com", matcher_currency="XYZ")
    order = make_order(new, is_matched=1, id="tx-1")

    assert (order.id, order.state, order.poster_amount) == ("tx-1", OrderState.MATCHED, new.poster_amount)
    assert order.posters_beneficiary.username == "somebody.else@example.com"
    assert order.unread == ()
    assert Order.from_json(order.to_json()) == order
    assert make_order().id != make_order().id
    with pytest.raises(UnreadableOrder):
        make_order(poster_amount="a lot")


def test_made_people_are_the_sandboxs_or_invented():
    assert make_user().lastname == "Okri"
    assert make_user(is_active=0).is_active is False
    stranger = make_user("grace.hopper@example.com", phone=None)
    assert (stranger.firstname, stranger.lastname, stranger.phone) == ("Grace", "Hopper", None)


def test_each_made_intent_is_different():
    one, other = make_intent(key="k"), make_intent(make_new_order(matcher_amount="1.00"), key="k")

    assert (one.key, one.order) == ("k", make_new_order())
    assert one.id != other.id
    assert other.order.matcher_amount == 1
