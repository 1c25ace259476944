"""The shop's own tests: `pytest`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask
from shop import Order, create_app, db, queue


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Flask]:
    app = create_app(SQLALCHEMY_DATABASE_URI=f"sqlite:///{tmp_path}/shop.db", TESTING=True)
    with app.app_context():
        db.create_all()
        queue.migrate()
    yield app
    with app.app_context():
        queue.close()
        db.engine.dispose()


def test_an_order_is_charged_and_shipped(app: Flask) -> None:
    client = app.test_client()
    client.post("/orders", data={"product": "teapot"})
    assert ">new<" in client.get("/").text
    with app.app_context():
        assert queue.drain() == 2
        order = db.session.scalars(db.select(Order)).one()
        assert (order.state, order.receipt) == ("shipped", f"receipt-{order.id}")
    assert ">shipped<" in client.get("/").text


def test_an_order_that_fails_leaves_no_chain(app: Flask) -> None:
    with pytest.raises(ValueError, match="unicorns"):
        app.test_client().post("/orders", data={"product": "unicorn"})
    with app.app_context():
        assert db.session.scalars(db.select(Order)).all() == []
        assert queue.list_chains().items == []
