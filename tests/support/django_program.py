"""A program that has Django configured: Django's connection as `conn=`. Run by test_user_transactions_django.py.

python -m support.django_program SETTINGS_AS_JSON TARGET
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress

import django
import pytest
from django.conf import settings

from queuert import DuplicateJobIdError, Queuert, TransactionRequiredError
from support.using import declare, is_empty, read_everything, use_everything

settings.configure(DATABASES={"default": json.loads(sys.argv[1])}, INSTALLED_APPS=[], USE_TZ=True)
django.setup()

from django.db import connection, connections, transaction  # noqa: E402  (needs the settings)


def foreign_keys_are_on_in_django(app: Queuert) -> None:
    """Django itself turns them on, so nothing has to be configured."""
    with suppress(ZeroDivisionError), transaction.atomic():
        app.start_chain("work", conn=connection)
        raise ZeroDivisionError
    assert is_empty(app)


def everything_commits_and_rolls_back(app: Queuert) -> None:
    with transaction.atomic():
        chain_id = use_everything(app, connection)
        assert app.get_chain(chain_id) is None
    assert app.get_chain(chain_id) is not None
    app.delete_chains([chain.id for chain in app.list_chains()])
    with suppress(ZeroDivisionError), transaction.atomic():
        use_everything(app, connection)
        raise ZeroDivisionError
    assert is_empty(app)
    assert connection.get_autocommit()
    assert not connection.in_atomic_block


def nested_blocks_take_what_was_in_them(app: Queuert) -> None:
    with transaction.atomic():
        before = app.start_chain("work", conn=connection)
        with suppress(ZeroDivisionError), transaction.atomic():
            app.start_chain("work", conn=connection)
            with transaction.atomic():
                app.start_chain("work", conn=connection)
            raise ZeroDivisionError
        with transaction.atomic():
            inner = app.start_chain("work", conn="default")
        point = transaction.savepoint()
        app.start_chain("work", conn=connections["default"])
        transaction.savepoint_rollback(point)
    assert {chain.id for chain in app.list_chains()} == {before.id, inner.id}


def outside_a_block_writing_is_refused_and_reading_is_fine(app: Queuert) -> None:
    chain = app.start_chain("work")
    for conn in (connection, "default"):
        with pytest.raises(TransactionRequiredError, match="atomic"):
            app.start_chain("work", conn=conn)
        read_everything(app, conn, chain.id)
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(TransactionRequiredError, match="rolled back"):
            app.start_chain("work", conn=connection)
    assert [c.id for c in app.list_chains()] == [chain.id]


def autocommit_off_is_a_transaction(app: Queuert) -> None:
    transaction.set_autocommit(False)
    kept = app.start_chain("work", conn=connection)
    transaction.commit()
    app.start_chain("work", conn=connection)
    transaction.rollback()
    transaction.set_autocommit(True)
    assert [chain.id for chain in app.list_chains()] == [kept.id]


def an_error_of_the_library_leaves_the_block_usable(app: Queuert) -> None:
    taken = app.start_chain("work")
    with transaction.atomic():
        with pytest.raises(DuplicateJobIdError):
            app.start_chain("work", id=taken.id, conn=connection)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM queuert_job")
            assert cursor.fetchone()[0] == 1
        kept = app.start_chain("work", conn=connection)
    assert app.get_chain(kept.id) == kept


CHECKS = [
    foreign_keys_are_on_in_django,
    everything_commits_and_rolls_back,
    nested_blocks_take_what_was_in_them,
    outside_a_block_writing_is_refused_and_reading_is_fine,
    autocommit_off_is_a_transaction,
    an_error_of_the_library_leaves_the_block_usable,
]


if __name__ == "__main__":
    with Queuert(sys.argv[2]) as app:
        app.migrate()
        declare(app)
        for check in CHECKS:
            check(app)
            app.delete_chains([chain.id for chain in app.list_chains()], cascade=True)
            print(check.__name__)
