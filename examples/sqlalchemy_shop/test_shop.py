"""The shop's own tests: `pytest`. They use a database of their own, and leave `shop.db` alone."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["SHOP_DATABASE"] = f"sqlite:///{Path(tempfile.mkdtemp(prefix='shop-')) / 'test.db'}"

import shop
from sqlalchemy import delete, select


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    shop.create_tables()
    yield
    with shop.sessions.begin() as session:
        session.execute(delete(shop.Order))
    shop.app.delete_chains([chain.id for chain in shop.app.list_chains().items])


def test_an_order_is_charged_and_shipped() -> None:
    with shop.sessions.begin() as session:
        number = shop.place(session, "teapot").id
    assert shop.app.drain() == 2
    with shop.sessions() as session:
        order = session.scalars(select(shop.Order)).one()
        assert (order.id, order.state, order.receipt) == (number, "shipped", f"receipt-{number}")


def test_an_order_that_fails_leaves_no_chain() -> None:
    with pytest.raises(ValueError, match="unicorns"), shop.sessions.begin() as session:
        shop.place(session, "unicorn")
    with shop.sessions() as session:
        assert session.scalars(select(shop.Order)).all() == []
    assert shop.app.list_chains().items == []
