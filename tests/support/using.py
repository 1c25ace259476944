"""The whole client API on one connection."""

from __future__ import annotations

from typing import Any

import pytest

from queuert import Dedup, DuplicateJobIdError, NewChain, Queuert

TABLES = ("job", "job_blocker", "job_attempt", "job_event", "job_key")


def declare(app: Queuert) -> Queuert:
    """The types that `use_everything` needs."""
    app.declare("work")
    return app


def use_everything(app: Queuert, conn: Any) -> str:
    """Call everything that takes a connection; the id of a chain that is there afterwards, if it is committed."""
    kept = app.start_chain("work", {"text": "ü€😀"}, conn=conn)
    assert kept.input == {"text": "ü€😀"}
    with pytest.raises(DuplicateJobIdError):
        app.start_chain("work", id=kept.id, conn=conn)
    with pytest.raises(DuplicateJobIdError):
        app.start_chains([NewChain("work"), NewChain("work", id=kept.id)], conn=conn)
    keyed = app.start_chain("work", dedup=Dedup("k", exclude_chain_ids=[kept]), conn=conn)
    assert app.start_chain("work", dedup=Dedup("k"), conn=conn).id == keyed.id
    later, waiting = app.start_chains([NewChain("work", after=60), NewChain("work", blockers=[kept, keyed])], conn=conn)
    assert app.trigger_job(later.id, conn=conn).id == later.id
    assert app.cancel_chain(later.id, conn=conn).status == "cancelled"
    assert app.retry_chain(later.id, conn=conn).status == "pending"
    with app.complete_chain(keyed.id, conn=conn) as tail:
        tail.continue_with("work", 2)
    with app.complete_chain(keyed.id, conn=conn) as tail:
        tail.finish({"done": True})
    found = app.get_chain(keyed.id, conn=conn)
    assert found is not None
    assert found.output == {"done": True}
    assert app.get_job(later.id, conn=conn) is not None
    assert [c.id for c in app.get_job_blockers(waiting.id, conn=conn)] == [kept.id, keyed.id]
    assert len(app.connected_chains(kept.id, conn=conn)) == 2
    assert len(app.list_chains(chain_ids=[kept, keyed, later, waiting], conn=conn)) == 4
    assert len(app.list_jobs(types=["work"], conn=conn)) >= 5
    assert len(app.list_chain_jobs(keyed.id, conn=conn)) == 2
    assert len(app.list_blocked_jobs(kept.id, conn=conn)) == 1
    assert app.attempts(later.id, conn=conn) == []
    assert len(app.timeline(later.id, conn=conn)) == 4
    assert app.stats(conn=conn).by_type["work"]
    assert {c.id for c in app.delete_chains([waiting.id, later.id], conn=conn)} == {waiting.id, later.id}
    return kept.id


def read_everything(app: Queuert, conn: Any, chain_id: str) -> None:
    """Call everything that only reads."""
    assert app.get_chain(chain_id, conn=conn) is not None
    assert app.get_job(chain_id, conn=conn) is not None
    assert app.get_job_blockers(chain_id, conn=conn) == []
    app.connected_chains(chain_id, conn=conn)
    assert app.list_chains(conn=conn).items
    assert app.list_jobs(conn=conn).items
    assert app.list_chain_jobs(chain_id, conn=conn).items
    app.list_blocked_jobs(chain_id, conn=conn)
    app.attempts(chain_id, conn=conn)
    assert app.timeline(chain_id, conn=conn)
    assert app.stats(conn=conn).by_type


def is_empty(app: Queuert) -> bool:
    """Whether there is nothing in any table."""
    with app.transaction() as tx:
        return not any(tx.execute(f"SELECT count(*) FROM queuert_{name}").fetchone()[0] for name in TABLES)
