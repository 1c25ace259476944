"""The operating commands, on a SQLite file and on PostgreSQL, as text and as JSON."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support import eventually
from support.inside import context_of

from queuert import Backoff, Dedup, Limit, NewChain, Queuert, Retention, RunningJob
from queuert.cli import main


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Shop(NamedTuple):
    """A database with one chain in every state."""

    url: str
    app: Queuert
    completed: str
    failed: str
    scheduled: str
    ready: str
    stranded: str
    cancelled: str


Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUEUERT_APP", "QUEUERT_URL", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*argv: object) -> Result:
        capsys.readouterr()
        code = main([str(part) for part in argv])
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture(params=["sqlite-file", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite-file":
        return f"sqlite:///{request.getfixturevalue('sqlite_path')}"
    found: str = request.getfixturevalue("pg_url")
    return found


@pytest.fixture
def shop(url: str) -> Iterator[Shop]:
    with Queuert(url) as app:
        app.migrate()
        make_types(app)
        completed = app.start_chain("charge", {"order": 1})
        failed = app.start_chain("refuse", {"order": 2})
        cancelled = app.start_chain("mail", {"order": 3})
        app.cancel_chain(cancelled)
        app.drain(types=["charge", "ship", "refuse"])
        stranded = app.start_chain("invoice", blockers=[failed])
        ready = app.start_chain("mail", {"order": 4})
        scheduled = app.start_chain("mail", {"order": 5}, after=3600)
        yield Shop(url, app, completed.id, failed.id, scheduled.id, ready.id, stranded.id, cancelled.id)


def make_types(app: Queuert) -> None:
    @app.job("charge", continues_with=["ship"])
    def charge(job: RunningJob[dict[str, int]]) -> Any:
        return job.continue_with("ship", job.input)

    @app.job("ship", entry=False)
    def ship(job: RunningJob[dict[str, int]]) -> dict[str, int]:
        return {"shipped": job.input["order"]}

    @app.job("refuse", backoff=Backoff(initial=0, jitter=0))
    def refuse(job: RunningJob[dict[str, int]]) -> None:
        job.fail("CARD:DECLINED", "the bank said no")

    @app.job("mail")
    def mail(job: RunningJob[dict[str, int]]) -> None: ...

    @app.job("invoice")
    def invoice(job: RunningJob[None]) -> None: ...


# migrate


def test_migrate_brings_an_empty_database_up_to_date_once(url: str, run: Run) -> None:
    prefix = ("--prefix", "other_")
    before = run("migrate", "--url", url, *prefix, "--status", "--json") if not url.startswith("sqlite") else None
    if before is not None:
        assert before.code == 1
        assert before.json["pending"]
    first = run("migrate", "--url", url, *prefix, "--json")
    assert first.code == 0
    assert first.json["done"] == first.json["applied"] != []
    again = run("migrate", "--url", url, *prefix)
    assert again.code == 0
    assert "up to date already" in again.out
    status = run("migrate", "--url", url, *prefix, "--status")
    assert (status.code, "applied" in status.out) == (0, True)


def test_a_schema_of_its_own_on_postgres(pg_url: str, run: Run) -> None:
    assert run("migrate", "--url", pg_url, "--schema", "jobs").code == 0
    assert run("stats", "--url", pg_url, "--schema", "jobs").code == 0
    missing = run("stats", "--url", pg_url, "--schema", "nothing")
    assert missing.code == 1
    assert "queuert migrate" in missing.err


def test_looking_at_a_file_that_is_not_there_does_not_make_it(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "typo.db"
    result = run("stats", "--url", f"sqlite:///{path}")
    assert result.code == 1
    assert "queuert migrate" in result.err
    assert not path.exists()


# stats and top


def test_stats_answers_the_five_questions(shop: Shop, run: Run) -> None:
    data = run("stats", "--url", shop.url, "--json").json
    assert data["by_status"] == {
        "blocked": 1,
        "pending": 2,
        "running": 0,
        "completed": 2,
        "failed": 1,
        "cancelled": 1,
    }
    assert data["by_type"]["mail"] == {"pending": 2, "cancelled": 1}
    assert data["stranded"] == 1
    assert data["oldest_ready_seconds"] >= 0
    assert data["attempts_by_type"]["refuse"] == {"1": 1}
    assert data["error_codes"] == [{"code": "CARD:DECLINED", "jobs": 1, "types": ["refuse"], "example": shop.failed}]
    assert set(data["oldest_kept"]) == {"completed", "failed", "cancelled"}
    text = run("stats", "--url", shop.url).out
    for part in ("CARD:DECLINED", "has waited", "1 blocked by a chain that failed", "What is kept"):
        assert part in text


def test_stats_of_a_running_job_name_its_worker(shop: Shop, run: Run) -> None:
    seen: list[tuple[Any, str]] = []

    @shop.app.job("slow")
    def slow(job: RunningJob[None]) -> None:
        seen.append((run("stats", "--url", shop.url, "--json").json, run("top", "--url", shop.url, "--once").out))

    shop.app.start_chain(slow)
    shop.app.drain(types=["slow"])
    data, text = seen[0]
    assert data["oldest_running"]["type_name"] == "slow"
    assert data["oldest_running"]["worker_id"] in text
    assert "running for" in text.lower()


def test_stats_of_some_types_and_with_limits(shop: Shop, run: Run) -> None:
    data = run("stats", "--url", shop.url, "--types", "mail", "--count-limit", "1", "--json").json
    assert list(data["by_type"]) == ["mail"]
    assert data["capped"] == ["pending"]
    assert data["capped_by_type"] == {"mail": ["pending"]}
    lines = run("stats", "--url", shop.url, "--count-limit", "1").out.splitlines()
    assert [line.split()[0] for line in lines if "1+" in line] == ["mail", "all"]
    assert run("stats", "--url", shop.url, "--exact", "--json").json["capped"] == []


def test_top_looks_once(shop: Shop, run: Run) -> None:
    result = run("top", "--url", shop.url, "--once")
    assert result.code == 0
    assert result.out.startswith("queuert top")
    assert "\x1b" not in result.out


# health


def failing(result: Result) -> list[str]:
    return [check["name"] for check in result.json["checks"] if not check["healthy"]]


def test_health_fails_while_jobs_are_ready_and_no_worker_is_alive(shop: Shop, run: Run) -> None:
    result = run("health", "--url", shop.url, "--json")
    assert (result.code, result.json["healthy"], failing(result)) == (1, False, ["workers"])
    assert "FAIL  workers" in run("health", "--url", shop.url).out
    with shop.app.worker(types=["charge"]):
        eventually(lambda: run("health", "--url", shop.url).code == 0)
        text = run("health", "--url", shop.url).out
        assert {line.split()[0] for line in text.splitlines()} == {"ok"}
    assert run("health", "--url", shop.url).code == 1
    shop.app.cancel_chain(shop.ready)
    assert run("health", "--url", shop.url).code == 0, "nobody waits for a worker"


def test_health_has_numbers_and_thresholds(shop: Shop, run: Run) -> None:
    with shop.app.worker(types=["charge"]):
        eventually(lambda: run("health", "--url", shop.url).code == 0)
        checks = {check["name"]: check for check in run("health", "--url", shop.url, "--json").json["checks"]}
        assert (checks["workers"]["value"], checks["stranded"]["value"], checks["failed"]["value"]) == (1, 1, 1)
        assert checks["waiting"]["limit"] == 300
        assert failing(run("health", "--url", shop.url, "--max-wait", "0", "--json")) == ["waiting"]
        assert failing(run("health", "--url", shop.url, "--max-stranded", "0", "--json")) == ["stranded"]
        assert failing(run("health", "--url", shop.url, "--max-failed", "0", "--json")) == ["failed"]
        assert run("health", "--url", shop.url, "--max-failed", "1", "--max-stranded", "1").code == 0


def test_health_fails_on_a_schedule_that_nobody_runs(shop: Shop, run: Run) -> None:
    shop.app.cancel_chain(shop.ready)
    late = (datetime.now(timezone.utc) - timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
    with shop.app.transaction() as tx:
        tx.execute(f"INSERT INTO queuert_singleton (name, next_run_at) VALUES ('queuert:periodic:nightly', '{late}')")
    assert failing(run("health", "--url", shop.url, "--json")) == ["schedules"]
    assert run("health", "--url", shop.url, "--max-overdue", "1h").code == 0


def test_health_fails_where_nothing_can_be_written(pg_url: str, run: Run) -> None:
    psycopg = pytest.importorskip("psycopg")
    with Queuert(pg_url) as app:
        app.migrate()
    assert run("health", "--url", pg_url).code == 0
    with psycopg.connect(pg_url, autocommit=True) as conn:
        conn.execute(
            "CREATE FUNCTION no_space() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END$$"
        )
        conn.execute("CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON queuert_singleton EXECUTE FUNCTION no_space()")
    result = run("health", "--url", pg_url, "--json")
    assert (result.code, failing(result)) == (1, ["writing"])
    assert run("health", "--url", pg_url, "--no-write").code == 0


def test_health_fails_on_a_lease_that_nobody_takes_back(shop: Shop, run: Run) -> None:
    shop.app.trigger_job(shop.ready)
    context = context_of(shop.app)
    repository = context.repository
    with context.database.block() as session:
        claimed = repository.claim_jobs(session, worker="gone", token=1, leases={"mail": 0.001}, limit=1)
    assert claimed
    result = run("health", "--url", shop.url, "--max-overdue", "0", "--json")
    assert (result.code, failing(result)) == (1, ["leases"])
    assert run("health", "--url", shop.url, "--max-overdue", "1h").code == 0


def test_health_fails_without_a_schema(empty_pg_url: str, tmp_path: Path, run: Run) -> None:
    empty_file = tmp_path / "empty.db"
    empty_file.touch()
    for target in (empty_pg_url, f"sqlite:///{empty_file}"):
        result = run("health", "--url", target)
        assert result.code == 1
        assert "FAIL  schema" in result.out


def test_health_fails_on_a_schema_of_a_newer_library(shop: Shop, run: Run) -> None:
    with shop.app.transaction() as tx:
        tx.execute("INSERT INTO queuert_migration (name, applied_at) VALUES ('9999_later', '2026-01-01T00:00:00Z')")
    result = run("health", "--url", shop.url)
    assert result.code == 1
    assert "ok    database" in result.out
    assert "FAIL  schema" in result.out


def test_health_fails_without_a_database(tmp_path: Path, run: Run) -> None:
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"not a database, whatever its name says" * 100)
    unreachable = "postgresql://someone:tell-nobody@127.0.0.1:1/shop"
    for target in (unreachable, f"sqlite:///{garbage}", f"sqlite:///{tmp_path / 'none.db'}"):
        result = run("health", "--url", target, "--json")
        assert result.code == 1
        assert result.json["checks"][-1]["name"] == "database"
        assert "tell-nobody" not in result.out + result.err


# jobs and chains


def test_jobs_are_listed_and_filtered(shop: Shop, run: Run) -> None:
    def ids(*options: str) -> list[str]:
        return [job["id"] for job in run("jobs", "--url", shop.url, "--json", *options).json["items"]]

    assert ids("--status", "failed") == [shop.failed]
    assert ids("--type", "mail", "--status", "pending") == [shop.scheduled, shop.ready]
    assert ids("--type", "mail", "--status", "pending", "--oldest-first") == [shop.ready, shop.scheduled]
    assert len(ids("--chain", shop.completed)) == 2
    assert len(ids("--chain-type", "charge")) == 2
    assert ids("--error-code", "CARD:DECLINED") == ids("--error-code", "CARD:") == [shop.failed]
    assert ids("--error-code", "CARD:OTHER") == []
    assert ids("--until", "2h") == []
    assert len(ids("--since", "2h")) == 7
    soon = (datetime.now(timezone.utc) + timedelta(days=1)).isoformat()
    assert ids("--since", soon) == []


def test_jobs_as_text_show_what_an_operator_looks_for(shop: Shop, run: Run) -> None:
    result = run("jobs", "--url", shop.url, "--status", "failed")
    head, line = result.out.splitlines()
    assert head.split() == ["ID", "TYPE", "STATUS", "ATTEMPT", "CREATED", "SCHEDULED", "ERROR"]
    assert line.split()[:4] == [shop.failed, "refuse", "failed", "1"]
    assert "the bank said no" in line
    assert run("jobs", "--url", shop.url, "--status", "running").out.splitlines()[-1] == "No job found."


def test_a_listing_goes_on_where_a_cursor_says(shop: Shop, run: Run) -> None:
    for command in ("jobs", "chains"):
        everything = [x["id"] for x in run(command, "--url", shop.url, "--json").json["items"]]
        seen: list[str] = []
        cursor: list[str] = []
        while True:
            page = run(command, "--url", shop.url, "--limit", "2", "--json", *cursor).json
            seen += [x["id"] for x in page["items"]]
            if page["next_cursor"] is None:
                break
            cursor = ["--cursor", page["next_cursor"]]
        assert seen == everything
        text = run(command, "--url", shop.url, "--limit", "2").out
        assert "--cursor " in text


def test_a_page_of_an_error_code_goes_on_too(shop: Shop, run: Run) -> None:
    for number in range(4):
        shop.app.start_chain("refuse", {"order": number})
    shop.app.drain(types=["refuse"])
    for command in ("jobs", "chains"):
        seen: list[str] = []
        cursor: list[str] = []
        pages = 0
        while True:
            options = ("--error-code", "CARD:DECLINED", "--limit", "2", "--json")
            page = run(command, "--url", shop.url, *options, *cursor).json
            assert len(page["items"]) <= 2
            seen += [x["id"] for x in page["items"]]
            pages += 1
            if page["next_cursor"] is None:
                break
            cursor = ["--cursor", page["next_cursor"]]
        assert len(seen) == len(set(seen)) == 5
        assert pages >= 3


MANY = 5_000


def many_failed(app: Queuert) -> None:
    """Thousands of failed jobs, every hundredth with another code, among as many completed ones."""
    for status in ("failed", "completed"):
        for _ in range(MANY // 1_000):
            app.start_chains([NewChain("mail", {"order": number}) for number in range(1_000)])
        with app.transaction() as tx:
            tx.execute(
                f"UPDATE queuert_job SET status = '{status}', completed_at = created_at, error_code = "
                f"CASE '{status}' WHEN 'failed' THEN 'TIMEOUT:GATEWAY' END WHERE status = 'pending' AND type_name = 'mail'"
            )
    rare = [job.id for job in app.list_jobs(statuses=["failed"], types=["mail"], limit=1_000).items[::20]]
    with app.transaction() as tx:
        named = ", ".join(f"'{job_id}'" for job_id in rare)
        tx.execute(f"UPDATE queuert_job SET error_code = 'DEPENDENCY:DB_LOCKED' WHERE id IN ({named})")


def test_an_error_code_chooses_among_very_many(shop: Shop, run: Run) -> None:
    many_failed(shop.app)
    total = shop.app.stats(types=["mail"]).by_status["failed"]
    asked = run("jobs", "--url", shop.url, "--error-code", "DEPENDENCY:DB_LOCKED", "--limit", "100", "--json").json
    assert len(asked["items"]) == 50
    assert asked["next_cursor"] is None
    assert {job["error_code"] for job in asked["items"]} == {"DEPENDENCY:DB_LOCKED"}
    category = run("chains", "--url", shop.url, "--error-code", "DEPENDENCY:", "--json", "--limit", "1000").json["items"]
    assert {chain["id"] for chain in category} == {job["chain_id"] for job in asked["items"]}
    assert run("jobs", "--url", shop.url, "--error-code", "NO:SUCH", "--json").json["items"] == []
    rest = total - 50
    would = run("retry", "--url", shop.url, "--error-code", "TIMEOUT:", "--dry-run", "--json").json["would"]
    assert len(set(would)) == rest
    retried = run("retry", "--url", shop.url, "--error-code", "TIMEOUT:GATEWAY", "--yes", "--json")
    assert (retried.code, len(retried.json["ids"]), retried.json["skipped"]) == (0, rest, {})
    after = shop.app.stats(types=["mail"])
    assert (after.by_status["failed"], after.by_status["pending"]) == (50, rest)


def test_chains_are_listed_and_filtered(shop: Shop, run: Run) -> None:
    def ids(*options: str) -> list[str]:
        return [chain["id"] for chain in run("chains", "--url", shop.url, "--json", *options).json["items"]]

    assert ids("--status", "completed") == [shop.completed]
    assert ids("--type", "invoice") == [shop.stranded]
    assert ids("--status", "failed", "--error-code", "CARD:DECLINED") == [shop.failed]
    assert shop.failed not in ids("--root-only")
    text = run("chains", "--url", shop.url, "--status", "completed,failed").out
    assert len(text.splitlines()) == 3
    assert "ship" in text


def test_payloads_are_raw_without_the_application(shop: Shop, run: Run) -> None:
    (chain,) = run("chains", "--url", shop.url, "--status", "completed", "--json").json["items"]
    assert chain["input"] == {"order": 1}
    assert chain["output"] == {"shipped": 1}


def test_what_no_index_serves_is_looked_for(shop: Shop, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def ids(command: str, *options: str) -> list[str]:
        return [each["id"] for each in run(command, "--url", shop.url, "--json", *options).json["items"]]

    keyed = shop.app.start_chain("mail", {"order": 9}, dedup=Dedup("order-9")).id
    for command in ("jobs", "chains"):
        assert ids(command, "--stranded") == [shop.stranded]
        assert ids(command, "--key", "order-9") == [keyed]
        assert ids(command, "--input", "order=2") == [shop.failed]
        assert ids(command, "--input", "order=2", "--type", "mail") == []
        assert ids(command, "--input", "nothing.there=2") == []
        assert ids(command, "--worker", "nobody") == []
    job = shop.app.get_job(shop.completed)
    assert job is not None
    assert shop.completed in ids("jobs", "--worker", str(job.completed_by))
    assert shop.completed in ids("chains", "--worker", str(job.completed_by))
    assert run("jobs", "--url", shop.url, "--stranded", "--status", "failed").code == 2
    assert run("jobs", "--url", shop.url, "--input", "nonsense").code == 2
    monkeypatch.setattr("queuert.cli.choosing.FURTHEST", 2)
    monkeypatch.setattr("queuert.chains.listing.LOOKED_AT", 2)
    short = run("jobs", "--url", shop.url, "--input", "order=1", "--json").json
    assert (short["items"], short["looked_at"], short["complete"]) == ([], 2, False)
    assert "Looked at 2 jobs" in run("jobs", "--url", shop.url, "--input", "order=1").out
    found: list[str] = []
    while cursor := short["next_cursor"]:
        short = run("jobs", "--url", shop.url, "--input", "order=1", "--json", "--cursor", cursor).json
        found += [each["id"] for each in short["items"]]
    assert shop.completed in found
    assert short["complete"] is True
    for nonsense in ("order=[1]", "=1", "a..b=1"):
        assert run("jobs", "--url", shop.url, "--input", nonsense).code == 2


def test_what_is_stranded_or_keyed_can_be_acted_on(shop: Shop, run: Run) -> None:
    done = run("cancel", "--stranded", "--yes", "--json", "--url", shop.url)
    assert (done.code, done.json["ids"]) == (0, [shop.stranded])
    assert run("retry", "--input", "order=2", "--yes", "--json", "--url", shop.url).json["ids"] == [shop.failed]


# show


def test_show_draws_a_chain(shop: Shop, run: Run) -> None:
    text = run("show", shop.completed, "--url", shop.url).out
    assert text.startswith(f"Chain {shop.completed}\n")
    for part in ('{"order": 1}', '{"shipped": 1}', "Attempts", "ENQUEUED", "CONTINUED", "SUCCEEDED", "charge", "ship"):
        assert part in text
    data = run("show", shop.completed, "--url", shop.url, "--json").json
    assert data["kind"] == "chain"
    assert [job["type_name"] for job in data["jobs"]] == ["charge", "ship"]
    assert [entry["event"] for entry in data["jobs"][1]["timeline"]][-1] == "SUCCEEDED"
    assert data["jobs"][0]["attempts"][0]["outcome"] == "succeeded"


def test_show_tells_why_a_chain_failed_and_who_waits_for_it(shop: Shop, run: Run) -> None:
    text = run("show", shop.failed, "--url", shop.url).out
    for part in ("CARD:DECLINED", "the bank said no", "Waiting for it", shop.stranded):
        assert part in text
    waiting = run("show", shop.stranded, "--url", shop.url).out
    assert "Blockers" in waiting
    assert shop.failed in waiting
    data = run("show", shop.stranded, "--url", shop.url, "--json").json
    assert [blocker["id"] for blocker in data["jobs"][0]["blockers"]] == [shop.failed]


def test_show_marks_what_failed_among_many_blockers(shop: Shop, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.app.declare("join")
    many = shop.app.start_chains([NewChain("charge", {"order": n}) for n in range(60)])
    shop.app.drain(types=["charge", "ship"])
    join = shop.app.start_chain("join", blockers=[*many[:30], shop.failed, *many[30:]])
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("show", join.id, "--url", shop.url, "--limit", "5").out.splitlines()
    start = lines.index("Blockers: 1 failed, 60 completed")
    assert lines[start + 2].split()[:3] == [shop.failed[-8:], "refuse", "failed"]
    assert "CARD:DECLINED" in lines[start + 2]
    assert lines[start + 8] == "and 55 more that are completed: --limit"
    assert max(map(len, lines)) <= 80


def test_show_a_single_job(shop: Shop, run: Run) -> None:
    chain = shop.app.get_chain(shop.completed)
    assert chain is not None
    text = run("show", chain.tail_id, "--url", shop.url).out
    assert text.startswith(f"Job {chain.tail_id}\n")
    assert f"{chain.id} (charge, completed), job 2 of it" in text
    data = run("show", chain.id, "--job", "--url", shop.url, "--json").json
    assert (data["kind"], data["job"]["continued_to"]) == ("job", chain.tail_id)


def test_show_spells_out_control_characters(shop: Shop, run: Run) -> None:
    @shop.app.job("nasty")
    def nasty(job: RunningJob[str]) -> None:
        job.fail("TEXT:NASTY", "\x1b[2Jgone\x07")

    chain = shop.app.start_chain(nasty, "\x1b]0;title\x07 [bold]not markup[/bold]")
    shop.app.drain(types=["nasty"])
    text = run("show", chain.id, "--url", shop.url).out + run("jobs", "--url", shop.url, "--type", "nasty").out
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold]not markup[/bold]" in text
    data = run("show", chain.id, "--url", shop.url, "--json")
    assert "\x1b" not in data.out
    assert data.json["chain"]["input"].startswith("\x1b]0;title")


def test_show_what_is_not_there(shop: Shop, run: Run) -> None:
    missing = run("show", "00000000-0000-4000-8000-000000000000", "--url", shop.url)
    assert (missing.code, missing.out) == (1, "")
    assert missing.err.startswith("queuert: There is no job or chain")
    assert missing.err.count("\n") == 1
    malformed = run("show", "nonsense", "--url", shop.url)
    assert malformed.code == 2


# Acts


def status_of(shop: Shop, chain_id: str) -> str | None:
    chain = shop.app.get_chain(chain_id)
    return None if chain is None else chain.status.value


def test_retry_by_id(shop: Shop, run: Run) -> None:
    result = run("retry", shop.failed, shop.cancelled, "--url", shop.url)
    assert (result.code, result.out) == (0, "Retried 2 chains.\n")
    assert status_of(shop, shop.failed) == status_of(shop, shop.cancelled) == "pending"


def test_named_ids_are_all_or_none(shop: Shop, run: Run) -> None:
    result = run("retry", shop.failed, shop.ready, "--url", shop.url)
    assert result.code == 1
    assert "only a failed or cancelled chain" in result.err
    assert status_of(shop, shop.failed) == "failed"
    missing = run("cancel", shop.ready, "00000000-0000-4000-8000-000000000000", "--url", shop.url)
    assert missing.code == 1
    assert status_of(shop, shop.ready) == "pending"


def test_retry_by_filter_wants_a_yes(shop: Shop, run: Run) -> None:
    options = ("--status", "failed", "--type", "refuse", "--error-code", "CARD:DECLINED", "--url", shop.url)
    refused = run("retry", *options)
    assert refused.code == 1
    assert "--yes" in refused.err
    assert status_of(shop, shop.failed) == "failed"
    assert run("retry", *options, "--json").code == 1
    nothing = run("retry", "--error-code", "OTHER:CODE", "--yes", "--url", shop.url)
    assert (nothing.code, nothing.out) == (1, "Retried 0 chains.\n")
    assert "nothing matched" in nothing.err
    assert run("retry", "--error-code", "OTHER:CODE", "--yes", "--json", "--url", shop.url).json["ids"] == []
    done = run("retry", *options, "--yes", "--json")
    assert (done.code, done.json) == (0, {"act": "retry", "ids": [shop.failed], "skipped": {}})
    assert status_of(shop, shop.failed) == "pending"


def test_a_person_at_a_terminal_is_asked(shop: Shop, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Keyboard:
        def __init__(self, answer: str) -> None:
            self.answer = answer

        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return self.answer

    monkeypatch.setattr("sys.stdin", Keyboard("\n"))
    no = run("retry", "--status", "failed", "--url", shop.url)
    assert (no.code, status_of(shop, shop.failed)) == (1, "failed")
    assert "Retry 1 chain? [y/N]" in no.err
    assert shop.failed in no.out
    monkeypatch.setattr("sys.stdin", Keyboard("y\n"))
    yes = run("retry", "--status", "failed", "--url", shop.url)
    assert (yes.code, status_of(shop, shop.failed)) == (0, "pending")


def test_many_ids_want_a_yes_too(shop: Shop, run: Run) -> None:
    ids = [shop.app.start_chain("mail", {"order": n}).id for n in range(11)]
    assert run("cancel", *ids, "--url", shop.url).code == 1
    assert run("cancel", *ids, "--yes", "--url", shop.url).out == "Cancelled 11 chains.\n"


def test_a_dry_run_changes_nothing(shop: Shop, run: Run) -> None:
    by_filter = run("cancel", "--type", "mail", "--dry-run", "--url", shop.url)
    assert by_filter.code == 0
    assert by_filter.out.splitlines()[0] == "Would cancel 2 chains."
    by_id = run("delete", shop.completed, "--dry-run", "--json", "--url", shop.url)
    assert by_id.json["would"] == [shop.completed]
    assert status_of(shop, shop.completed) == "completed"
    assert status_of(shop, shop.ready) == "pending"


def test_a_later_jobs_id_stands_for_its_chain_except_for_deleting(shop: Shop, run: Run) -> None:
    @shop.app.job("second", entry=False)
    def second(job: RunningJob[None]) -> None: ...

    @shop.app.job("first")
    def first(job: RunningJob[None]) -> Any:
        return job.continue_with(second, after=3600)

    chain = shop.app.start_chain(first)
    shop.app.drain(types=["first", "second"])
    found = shop.app.get_chain(chain.id)
    assert found is not None
    tail = found.tail_id
    assert run("delete", tail, "--url", shop.url).code == 1
    assert run("trigger", chain.id, "--json", "--url", shop.url).json["ids"] == [tail]
    assert run("cancel", tail, "--json", "--url", shop.url).json["ids"] == [chain.id]
    assert status_of(shop, chain.id) == "cancelled"


def test_a_reason_stands_beside_the_actor(shop: Shop, run: Run) -> None:
    for act, chain, event in (
        ("retry", shop.failed, "RETRIED"),
        ("cancel", shop.ready, "CANCELLED"),
        ("trigger", shop.scheduled, "TRIGGERED"),
    ):
        assert run(act, chain, "--reason", "the bank is back", "--url", shop.url).code == 0
        (entry,) = [entry for entry in shop.app.timeline(chain) if entry.event == event]
        assert entry.detail == {"reason": "the bank is back"}
        assert entry.actor is not None
    assert "reason the bank is back" in run("show", shop.failed, "--url", shop.url).out
    assert run("retry", shop.failed, "--reason", " ", "--url", shop.url).code == 2
    for bad in ("", "x" * 501, "\0"):
        with pytest.raises(ValueError, match="reason must"):
            shop.app.cancel_chain(shop.failed, reason=bad)


def test_retry_goes_in_parts_and_no_faster_than_told(shop: Shop, run: Run) -> None:
    ids = [shop.failed, *(shop.app.start_chain("refuse", {"order": n}).id for n in range(9))]
    shop.app.drain(types=["refuse"])
    some = run("retry", "--status", "failed", "--limit", "3", "--yes", "--json", "--url", shop.url)
    assert some.json["ids"] == ids[:3], "the oldest first"
    began = time.monotonic()
    rest = run("retry", "--failed-since", "1h", "--rate", "10/s", "--yes", "--json", "--url", shop.url)
    assert rest.json["ids"] == ids[3:]
    assert time.monotonic() - began >= 0.5, "seven of them: five, and the others half a second later"
    assert run("retry", "--failed-since", "1h", "--yes", "--url", shop.url).code == 1
    assert run("retry", shop.failed, "--limit", "3", "--url", shop.url).code == 2


def test_failed_since_looks_at_the_failure_and_not_at_the_creation(shop: Shop, run: Run) -> None:
    with shop.app.transaction() as tx:
        tx.execute("UPDATE queuert_job SET created_at = '2020-01-01T00:00:00.000000Z' WHERE type_name = 'refuse'")
    assert run("retry", "--since", "1h", "--dry-run", "--url", shop.url).code == 1
    assert run("retry", "--failed-since", "1h", "--dry-run", "--json", "--url", shop.url).json["would"] == [shop.failed]
    with shop.app.transaction() as tx:
        tx.execute("UPDATE queuert_job SET completed_at = '2020-01-01T00:00:00.000000Z' WHERE type_name = 'refuse'")
    assert run("retry", "--failed-since", "1h", "--dry-run", "--url", shop.url).code == 1


def test_cancel_with_those_that_wait(shop: Shop, run: Run) -> None:
    assert run("cancel", shop.failed, "--cascade", "--url", shop.url).code == 0
    assert status_of(shop, shop.stranded) == "cancelled"


def test_trigger_runs_a_scheduled_job_now(shop: Shop, run: Run) -> None:
    assert run("trigger", shop.scheduled, "--url", shop.url).out == "Triggered 1 job.\n"
    job = shop.app.get_job(shop.scheduled)
    assert job is not None
    assert job.scheduled_at <= datetime.now(timezone.utc) + timedelta(seconds=60)
    assert [e.actor[:3] for e in shop.app.timeline(shop.scheduled) if e.event == "TRIGGERED" and e.actor] == ["cli"]
    assert run("trigger", shop.failed, "--url", shop.url).code == 1
    assert run("trigger", "--type", "mail", "--yes", "--url", shop.url).out == "Triggered 2 jobs.\n"


def test_delete_refuses_what_others_wait_for(shop: Shop, run: Run) -> None:
    refused = run("delete", shop.failed, "--url", shop.url)
    assert refused.code == 1
    assert shop.stranded in refused.err
    skipped = run("delete", "--status", "failed,cancelled", "--yes", "--json", "--url", shop.url)
    assert skipped.code == 1
    assert skipped.json["ids"] == [shop.cancelled]
    assert list(skipped.json["skipped"]) == [shop.failed]
    together = run("delete", shop.stranded, "--cascade", "--json", "--url", shop.url)
    assert set(together.json["ids"]) == {shop.stranded, shop.failed}
    assert status_of(shop, shop.failed) is None


def test_every_act_takes_filters_and_says_who_did_it(shop: Shop, run: Run) -> None:
    def act(*argv: str) -> list[str]:
        done = run(*argv, "--yes", "--json", "--url", shop.url)
        assert done.code == 0
        return done.json["ids"]

    assert act("trigger", "--type", "mail") == [shop.ready, shop.scheduled]
    assert act("retry", "--error-code", "CARD:DECLINED", "--type", "refuse") == [shop.failed]
    assert act("cancel", "--chain-type", "mail") == [shop.ready, shop.scheduled]
    timeline = [(entry.event, entry.actor) for entry in shop.app.timeline(shop.scheduled)]
    (triggered, cancelled) = timeline[1:]
    assert (triggered[0], cancelled[0]) == ("TRIGGERED", "CANCELLED")
    assert triggered[1] == cancelled[1]
    assert str(triggered[1]).startswith("cli")
    assert set(act("delete", "--status", "cancelled")) == {shop.cancelled, shop.ready, shop.scheduled}
    assert status_of(shop, shop.scheduled) is None


def test_acts_refuse_states_they_are_not_for(shop: Shop, run: Run) -> None:
    result = run("retry", "--status", "completed", "--yes", "--url", shop.url)
    assert result.code == 2
    assert "failed, cancelled" in result.err
    assert run("delete", "--url", shop.url).code == 2
    assert run("delete", shop.failed, "--status", "failed", "--url", shop.url).code == 2


# why


def test_why_says_what_a_job_waits_for(shop: Shop, run: Run) -> None:
    def codes(identity: str) -> list[str]:
        return [reason["code"] for reason in run("why", identity, "--url", shop.url, "--json").json["reasons"]]

    assert codes(shop.stranded[-8:])[0] == "stranded"
    assert "not_due" in codes(shop.scheduled)
    assert "no_worker" in codes(shop.ready)
    assert codes(shop.completed) == ["closed"]
    shop.app.pause("mail", reason="bank down")
    assert "paused" in codes(shop.ready)
    text = run("why", shop.stranded, "--url", shop.url).out
    assert f"invoice {shop.stranded} is blocked" in text
    assert "stranded: " in text
    assert shop.failed in text


# workers


def test_workers_says_who_is_there(shop: Shop, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("workers", "--url", shop.url).out == "No worker is there.\n"
    assert run("workers", "--url", shop.url, "--json").json == {"items": [], "next_cursor": None}
    with shop.app.worker(types=["charge", "ship"], concurrency=3, name="till") as worker:
        found = eventually(lambda: run("workers", "--url", shop.url, "--json").json["items"])
        assert (found[0]["id"], found[0]["name"], found[0]["concurrency"], found[0]["lost"]) == (worker.id, "till", 3, False)
        assert worker.id in run("workers", "--url", shop.url).out
        monkeypatch.setenv("COLUMNS", "80")
        lines = run("workers", "--url", shop.url).out.splitlines()
        assert max(map(len, lines)) <= 80
        assert "0/3" in lines[1]
        assert "alive" in lines[1]


# Shortened ids


def test_an_id_may_be_shortened_to_either_end(shop: Shop, run: Run) -> None:
    for part in (shop.failed[-6:], shop.failed[-8:].upper(), shop.failed[:-4]):
        assert run("show", part, "--url", shop.url, "--json").json["chain"]["id"] == shop.failed
    assert run("retry", shop.failed[-8:], "--url", shop.url, "--json").json["ids"] == [shop.failed]
    assert len(run("jobs", "--chain", shop.completed[-8:], "--url", shop.url, "--json").json["items"]) == 2


def test_a_shortened_id_that_means_several_or_none(shop: Shop, run: Run) -> None:
    several = run("cancel", shop.failed[:6], "--url", shop.url, "--json")
    assert (several.code, several.json["type"]) == (1, "AmbiguousIdError")
    assert shop.failed[:6] in several.json["error"]
    assert run("show", "abcdef123456", "--url", shop.url, "--json").json["type"] == "JobNotFoundError"
    assert run("show", shop.failed[-5:], "--url", shop.url).code == 2
    assert run("show", "%" + shop.failed[-6:], "--url", shop.url).code == 2


# pause and resume


def test_types_are_paused_and_resumed(shop: Shop, run: Run) -> None:
    paused = run("pause", "mail", "--until", "30m", "--reason", "bank down", "--json", "--url", shop.url)
    (entry,) = paused.json["items"]
    assert (entry["type_name"], entry["reason"], entry["actor"][:3]) == ("mail", "bank down", "cli")
    assert entry["until"] is not None
    assert shop.app.drain(types=["mail"]) == 0
    text = run("pause", "--list", "--url", shop.url).out
    assert "mail" in text
    assert "bank down" in text
    assert run("resume", "mail", "--json", "--url", shop.url).json == {"items": [], "next_cursor": None}
    assert shop.app.drain(types=["mail"]) == 1
    assert "everything" in run("pause", "--all", "--url", shop.url).out
    assert run("pause", "mail", "--all", "--url", shop.url).code == 2
    assert "Nothing is paused." in run("resume", "--url", shop.url).out
    assert shop.app.pauses() == []


def test_limits_are_listed_set_and_reset(shop: Shop, run: Run) -> None:
    assert "No limit is in use." in run("limits", "--url", shop.url).out
    shop.app.job("call", limit=Limit(3))(lambda job: None)
    shop.app.start_chain("call")
    done = run("limits", "set", "call", "--concurrency", "5", "--rate", "10", "--per", "60", "--url", shop.url)
    assert (done.code, done.out.strip()) == (0, "The limit call is set.")
    [limit] = shop.app.limits()
    assert (limit.concurrency, limit.rate, limit.per, limit.set_by) == (5, 10, 60, "cli")
    text = run("limits", "--url", shop.url).out
    assert "call" in text
    assert "10 in 60 s" in text
    (entry,) = run("limits", "--json", "--url", shop.url).json["items"]
    assert (entry["name"], entry["key"], entry["waiting"], entry["running"]) == ("call", None, 1, 0)
    assert run("limits", "reset", "call", "--url", shop.url).code == 0
    [limit] = shop.app.limits()
    assert (limit.concurrency, limit.rate, limit.set_by) == (3, None, None)


def test_limits_that_cannot_be_meant_are_refused(shop: Shop, run: Run) -> None:
    for wrong in (["set", "call"], ["set"], ["set", "call", "--concurrency", "0"], ["set", "call", "--rate", "nan"]):
        assert run("limits", *wrong, "--url", shop.url).code != 0, wrong
    assert context_of(shop.app).read(None, context_of(shop.app).repository.list_limits) == {}


# start and finish


def test_a_chain_is_started_without_the_application(shop: Shop, run: Run, tmp_path: Path) -> None:
    started = run("start", "mail", "--input", '{"order": 7}', "--after", "15m", "--key", "7", "--json", "--url", shop.url)
    chain = started.json["chain"]
    assert (started.code, chain["type_name"], chain["input"]) == (0, "mail", {"order": 7})
    job = shop.app.get_job(chain["id"])
    assert job is not None
    assert job.scheduled_at > datetime.now(timezone.utc) + timedelta(minutes=10)
    again = run("start", "mail", "--input", '{"order": 7}', "--key", "7", "--url", shop.url)
    assert again.out.startswith("There was one with this key already")
    assert chain["id"] in again.out
    file = tmp_path / "input.json"
    file.write_text('{"order": 8}')
    assert run("start", "mail", "--input", f"@{file}", "--json", "--url", shop.url).json["chain"]["input"] == {"order": 8}
    assert run("start", "mail", "--input", "{order", "--url", shop.url).code == 2
    assert run("start", "mail", "--input", f"@{tmp_path / 'none'}", "--url", shop.url).code == 2


def test_an_applications_types_check_what_is_started(
    shop: Shop, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"typed_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(
        f"from queuert import Queuert, RunningJob\napp = Queuert({shop.url!r})\n"
        "@app.job('count', max_attempts=3)\ndef count(job: RunningJob[int]) -> int:\n    return job.input\n"
    )
    bad = run("start", "count", "--input", '"seven"', "--json", "--app", name)
    assert (bad.code, bad.json["type"]) == (1, "JobTypeValidationError")
    unknown = run("start", "cuont", "--app", name)
    assert unknown.code == 2
    assert "count" in unknown.err
    good = run("start", "count", "--input", "7", "--json", "--app", name).json["chain"]
    job = shop.app.get_job(good["id"])
    assert job is not None
    assert job.max_attempts == 3


def test_a_chain_is_finished_by_hand(shop: Shop, run: Run) -> None:
    done = run("finish", shop.ready, "--output", '{"sent": true}', "--reason", "by phone", "--json", "--url", shop.url)
    assert (done.code, done.json["chain"]["status"], done.json["chain"]["output"]) == (0, "completed", {"sent": True})
    (entry,) = [entry for entry in shop.app.timeline(shop.ready) if entry.event == "FINISHED"]
    assert entry.detail == {"reason": "by phone"}
    assert str(entry.actor).startswith("cli")
    again = run("finish", shop.ready, "--json", "--url", shop.url)
    assert (again.code, again.json["type"]) == (1, "JobAlreadyCompletedError")
    assert [entry.event for entry in shop.app.timeline(shop.ready)].count("FINISHED") == 1


# cleanup, vacuum, sql


def test_cleanup_follows_the_policy_it_is_given(shop: Shop, run: Run) -> None:
    usual = run("cleanup", "--url", shop.url)
    assert (usual.code, usual.out.splitlines()[-1]) == (0, "Deleted 0 chains (0 completed, 0 failed, 0 cancelled).")
    assert "completed 30 d" in usual.out
    some = run("cleanup", "--completed", "0", "--cancelled", "0s", "--failed", "never", "--json", "--url", shop.url)
    assert some.json == {"deleted": {"completed": 1, "failed": 0, "cancelled": 1}, "total": 2}
    kept = run("cleanup", "--failed", "0", "--max-seconds", "10", "--json", "--url", shop.url)
    assert kept.json["total"] == 0  # somebody waits for it
    assert status_of(shop, shop.failed) == "failed"


def test_cleanup_takes_the_applications_own_policy(
    shop: Shop, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"keeps_nothing_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(
        f"from queuert import Queuert, Retention\napp = Queuert({shop.url!r}, retention=Retention(completed=0))\n"
    )
    assert run("cleanup", "--app", f"{name}:app", "--json").json["deleted"]["completed"] == 1


def test_a_dry_run_says_what_a_cleanup_would_delete(shop: Shop, run: Run) -> None:
    options = ("--completed", "0", "--cancelled", "0", "--failed", "0", "--url", shop.url)
    would = run("cleanup", *options, "--dry-run", "--json")
    assert would.json == {"would_delete": {"completed": 1, "failed": 0, "cancelled": 1}, "total": 2}
    assert "Would delete 2 chains" in run("cleanup", *options, "--dry-run").out
    assert status_of(shop, shop.completed) == "completed"
    assert run("cleanup", *options, "--json").json["deleted"] == would.json["would_delete"]


def test_vacuum_says_what_it_gained(shop: Shop, run: Run) -> None:
    shop.app.start_chains([NewChain("mail", {"order": number}) for number in range(3_000)])
    with shop.app.transaction() as tx:
        tx.execute("UPDATE queuert_job SET status = 'completed', completed_at = created_at WHERE type_name = 'mail'")
    shop.app.cleanup(Retention(completed=0))
    assert run("vacuum", "--url", shop.url).code == 0
    refused = run("vacuum", "--url", shop.url, "--full")
    assert (refused.code, "--yes" in refused.err) == (1, True)
    done = run("vacuum", "--url", shop.url, "--full", "--yes", "--json")
    assert done.code == 0
    assert done.json["gained"] == done.json["bytes_before"] - done.json["bytes_after"]
    assert "Gained " in run("vacuum", "--url", shop.url, "--full", "--yes").out


def test_a_full_vacuum_gains_what_deleted_rows_took(pg_url: str, run: Run) -> None:
    with Queuert(pg_url) as app:
        app.migrate()
        app.declare("mail")
        app.start_chains([NewChain("mail", "x" * 1_000) for _ in range(1_000)])
        with app.transaction() as tx:
            tx.execute("DELETE FROM queuert_job")
        assert run("vacuum", "--url", pg_url, "--full", "--yes", "--json").json["gained"] > 0


def test_sizes_name_tables_and_the_rest(shop: Shop, run: Run) -> None:
    sizes = run("stats", "--sizes", "--url", shop.url, "--json").json["sizes"]
    tables = {table["name"]: table for table in sizes["tables"]}
    assert {"queuert_job", "queuert_job_attempt", "queuert_job_event"} <= set(tables)
    assert tables["queuert_job"]["bytes"] > 0
    assert tables["queuert_job"]["index_bytes"] > 0
    assert sizes["total_bytes"] >= tables["queuert_job"]["bytes"]
    assert sizes["wal_bytes"] is not None
    if shop.url.startswith("postgres"):
        assert tables["queuert_job"]["dead_rows"] is not None
    else:
        assert sizes["free_bytes"] is not None
    text = run("stats", "--sizes", "--url", shop.url).out
    assert "Room that it takes" in text
    assert "queuert_job_attempt" in text


def test_vacuum_says_what_an_old_file_needs(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "old.db"
    conn = sqlite3.connect(path)
    conn.execute("CREATE TABLE something (id)")
    conn.commit()
    conn.close()
    run("migrate", "--url", f"sqlite:///{path}")
    refused = run("vacuum", "--url", f"sqlite:///{path}")
    assert (refused.code, "--full" in refused.err) == (1, True)
    assert run("vacuum", "--url", f"sqlite:///{path}", "--full", "--yes").code == 0
    assert run("vacuum", "--url", f"sqlite:///{path}").code == 0


def test_the_printed_schema_makes_a_database_that_needs_no_migration(empty_pg_url: str, tmp_path: Path, run: Run) -> None:
    psycopg = pytest.importorskip("psycopg")
    path = tmp_path / "by_hand.db"
    script = run("sql", "--dialect", "sqlite", "--prefix", "mine_").out
    conn = sqlite3.connect(path)
    conn.executescript(script)
    conn.close()
    script = run("sql", "--url", empty_pg_url, "--schema", "mine", "--prefix", "my_").out
    with psycopg.connect(empty_pg_url, autocommit=True) as server:
        server.execute(script)
    made: dict[str, dict[str, Any]] = {
        f"sqlite:///{path}": {"table_prefix": "mine_"},
        empty_pg_url: {"table_prefix": "my_", "schema": "mine"},
    }
    for target, names in made.items():
        with Queuert(target, **names) as app:
            assert app.migration_status().pending == ()
            app.declare("anything")
            assert app.get_chain(app.start_chain("anything")) is not None


def test_the_schema_needs_no_database(run: Run) -> None:
    assert 'CREATE TABLE "queuert_job"' in run("sql", "--url", "sqlite:///no/such/file.db").out
    assert '"public"."queuert_job"' in run("sql", "--dialect", "postgres").out
    assert run("sql").code == 2
    assert run("sql", "--dialect", "postgres", "--url", "sqlite:///file.db").code == 2
