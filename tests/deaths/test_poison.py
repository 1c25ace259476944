"""Jobs that would take others down with them, in real processes: they end alone."""

from __future__ import annotations

import pytest
from support import eventually, found
from support.audit import check_attempts, check_no_orphans, ledger, outcomes, rows, statuses, unfinished
from support.clocks import is_postgres
from support.fleet import Fleet

from queuert import NewChain, Queuert

INNOCENT = 200


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize(("where", "most"), [("handler", 3), ("complete", 3), ("handler", 2)])
def test_one_poison_job_among_two_hundred_fails_alone(client: Queuert, fleet: Fleet, where: str, most: int) -> None:
    half = INNOCENT // 2
    chains = client.start_chains(
        [
            *[NewChain("leaf", number, max_attempts=most) for number in range(half)],
            NewChain("poison", where, max_attempts=most),
            *[NewChain("leaf", number, max_attempts=most) for number in range(half)],
        ]
    )
    poison = chains.pop(half)
    with fleet.explained():
        deaths = fleet.until(lambda: not unfinished(client), size=1, timeout=60, worker={"concurrency": 10})
        found = client.get_chain(poison.id)
        assert found is not None
        assert (found.status, found.error_code) == ("failed", "WORKER:LOST")
        assert statuses(client) == {"failed": 1, "completed": INNOCENT}
        tries = outcomes(client)
        # The first time counts, the second in company is forgiven, and then it is alone.
        assert tries[poison.id] == ["lost"] * (most + 1)
        assert deaths == most + 1, "nobody dies of anything else"
        for chain in chains:
            assert tries[chain.id] in (["succeeded"], ["lost", "succeeded"], ["lost", "lost", "succeeded"])
        assert ledger(client) == {chain.id: 1 for chain in chains}
        check_attempts(client)
        check_no_orphans(client)


def test_what_cannot_run_here_does_no_harm(client: Queuert, fleet: Fleet) -> None:
    """Inputs of another version fail at once, types of another process wait, and the worker goes on."""
    client.declare("elsewhere")
    broken = client.start_chains([NewChain("strict", value) for value in ("text", {"number": "x"}, {"other": 1}, None)])
    foreign = client.start_chains([NewChain("elsewhere", number, priority=100) for number in range(20)])
    good = client.start_chains([NewChain("strict", {"number": number}) for number in range(20)])
    with fleet.explained():
        worker = fleet.start(worker={"concurrency": 4})
        assert [client.wait_for(chain, timeout=20).output for chain in good] == list(range(20))
        for chain in broken:
            ended = client.wait_for(chain, timeout=10, raise_on_failure=False)
            assert ended.status == "failed"
            assert (ended.error_code or "").startswith("INVALID_INPUT:")
            assert [attempt.outcome for attempt in client.attempts(chain.id)] == ["failed"]
        started = {mark.job_id for mark in fleet.marks.all("started")}
        assert started == {chain.id for chain in good}
        assert worker.stop() == 0
    waiting = rows(client, "SELECT DISTINCT status, attempt FROM queuert_job WHERE type_name = 'elsewhere'")
    assert waiting == [("pending", 0)]
    assert len(foreign) == 20


RUDE = ["commit", "rollback", "close", "executescript", "with", "COMMIT", "ROLLBACK", "BEGIN", "END"]


@pytest.mark.usefixtures("sound")
def test_user_code_that_ends_the_transaction_gets_an_error_and_harms_no_neighbour(client: Queuert, fleet: Fleet) -> None:
    new = [NewChain("leaf", number) for number in range(40)]
    rude = [NewChain("rude", how, max_attempts=1) for how in RUDE for _ in range(3)]
    for number, each in enumerate(rude):
        new.insert(number * 2, each)
    chains = client.start_chains(new)
    with fleet.explained():
        worker = fleet.start(worker={"concurrency": 8})
        eventually(lambda: not unfinished(client), 30)
        offenders = {chain.id: str(chain.input) for chain in chains if chain.type_name == "rude"}
        neighbours = [chain.id for chain in chains if chain.id not in offenders]
        ended = {chain.id: found(client.get_chain(chain.id)) for chain in chains}
        harmless = {"BEGIN"} if is_postgres(client) else set()  # there it is a warning, and changes nothing
        wrong = {
            how: str(ended[job_id].status)
            for job_id, how in offenders.items()
            if ended[job_id].status != ("completed" if how in harmless else "failed")
        }
        assert wrong == {}
        written = ledger(client)
        assert [written[job_id] for job_id in neighbours] == [1] * len(neighbours)
        # What PostgreSQL was told to commit is committed; the job fails all the same.
        allowed = {"BEGIN", "COMMIT", "END"} if is_postgres(client) else set()
        assert {how for job_id, how in offenders.items() if written[job_id]} <= allowed
        assert "script" not in written
        assert {len(each) for each in outcomes(client).values()} == {1}
        check_no_orphans(client)
        assert worker.stop() == 0
