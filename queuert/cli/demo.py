"""`queuert demo`: a small shop that shows, in half a minute, what the library promises, and checks that it holds.

It runs on a SQLite file that it makes and removes. On PostgreSQL it works in a schema of its own, on a SQLite file
that was named with a table prefix of its own, and removes those.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from queuert import Queuert, QueuertError, Status
from queuert.cli import shop
from queuert.cli.exits import OK, REFUSED
from queuert.cli.output import Cell, Output
from queuert.cli.parser import add_command
from queuert.cli.shop import Order, charge_card, pack_item, print_label, refund, send_invoice
from queuert.cli.show import draw_timeline, read_story
from queuert.cli.values import lasting
from queuert.storage.names import TABLES
from queuert.storage.urls import parse_target, safe_url

PATIENCE: Final = 20.0


class Shown:
    """Prints the story, and remembers whether what was promised came true."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self.broken = 0
        self._step = 0

    def step(self, title: str, *code: str) -> None:
        self._step += 1
        self.out.heading(f"{self._step}. {title}")
        for line in code:
            self.out.line(Cell(f"     {line}", "cyan"))

    def expect(self, held: bool, text: str) -> None:
        good, bad = ("✓", "✗") if self.out.draws else ("ok", "NOT TRUE:")
        self.broken += not held
        self.out.line("   ", Cell(good, "green") if held else Cell(bad, "bold red"), f" {text}")


def add(commands: Any) -> None:
    command = add_command(
        commands,
        "demo",
        "see what it does: a small shop that runs, fails, is killed and recovers",
        details="It needs nothing but this package, and leaves nothing behind.",
        example="""
            queuert demo
            queuert demo --url postgresql://localhost/test""",
        database=False,
    )
    command.add_argument("--url", help="a database to run it on instead of a temporary SQLite file")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    out = Output()
    began = time.monotonic()
    with _place(args.url) as (url, prefix, schema), _quiet(), shop.make_app(url, prefix, schema) as app:
        shown = Shown(out)
        out.line(Cell("A small shop on ", "bold"), Cell(safe_url(url), "bold"))
        app.migrate()
        try:
            with app.transaction() as tx:
                shop.orders.create(tx)
            _tell(app, shown, dict(zip(shop.ENVIRONMENT, (url, prefix, schema), strict=True)))
        finally:
            _remove(app, prefix, schema)
    out.line()
    took = lasting(time.monotonic() - began)
    if shown.broken:
        out.line(Cell(f"{shown.broken} of these did not come true, in {took}.", "bold red"))
        return REFUSED
    out.line(Cell(f"All of it came true, in {took}.", "bold green"), " Nothing of it was left behind.")
    out.line("Next: the first page of the README, then `queuert --help`.")
    return OK


def _tell(app: Queuert, shown: Shown, environment: dict[str, str]) -> None:
    try:
        _commit_together(app, shown)
        _roll_back_together(app, shown)
        with app.worker(concurrency=4, name="shop"):
            _run_chain(app, shown)
            _fan_in(app, shown)
            _retry(app, shown)
        _survive_a_kill(app, shown, environment)
    except (QueuertError, TimeoutError) as error:
        shown.expect(False, f"the story went on: {error}")


def _commit_together(app: Queuert, shown: Shown) -> None:
    shown.step(
        "An order and its job, in one transaction",
        "with app.transaction() as tx:",
        '    tx.execute("INSERT INTO orders ...")',
        "    app.start_chain(charge_card, Order(1), conn=tx)",
    )
    with app.transaction() as tx:
        shop.orders.insert(tx, 1)
        chain = app.start_chain(charge_card, Order(1), conn=tx)
    shown.expect(_order(app, 1) == "new", "committed: order 1 is in the shop's table")
    found = app.get_chain(chain.id)
    shown.expect(found is not None and found.status == "pending", f"committed with it: chain {chain.id} waits for a worker")


def _roll_back_together(app: Queuert, shown: Shown) -> None:
    shown.step("The same, but the transaction fails")
    chain_id = None
    try:
        with app.transaction() as tx:
            shop.orders.insert(tx, 2)
            chain_id = app.start_chain(charge_card, Order(2), conn=tx).id
            raise RuntimeError("out of stock")
    except RuntimeError:
        pass
    shown.expect(_order(app, 2) is None, "rolled back: there is no order 2")
    gone = chain_id is not None and app.get_chain(chain_id) is None
    shown.expect(gone, "rolled back with it: there is no chain either, so no card is charged for nothing")


def _run_chain(app: Queuert, shown: Shown) -> None:
    shown.step(
        "A worker runs the chain: charge-card, then ship-order",
        "with job.complete() as tx:                             # one transaction:",
        "    tx.execute(\"UPDATE orders SET state = 'paid' ...\")   # your write,",
        "    return job.continue_with(ship_order, job.input)    # this job's end, and the next job",
    )
    (first,) = app.list_chains(types=[charge_card], order="asc", limit=1).items
    chain = app.wait_for(first, timeout=PATIENCE)
    shown.expect(chain.output == {"shipped": 1}, f"the chain completed with {chain.output}")
    shown.expect(_order(app, 1) == "shipped", "order 1 went new, paid, shipped, each step with its job or not at all")


def _fan_in(app: Queuert, shown: Shown) -> None:
    shown.step(
        "One job waits for several chains",
        "packed = [app.start_chain(pack_item, item) for item in ...]",
        "app.start_chain(send_invoice, Order(1), blockers=packed)",
    )
    with app.transaction() as tx:
        packed = [app.start_chain(pack_item, item, conn=tx) for item in ("a lamp", "a chair", "a vase")]
        invoice = app.start_chain(send_invoice, Order(1), blockers=packed, conn=tx)
        blocked = app.get_chain(invoice.id, conn=tx)
    shown.expect(blocked is not None and blocked.status == "blocked", "the invoice was blocked while three items were packed")
    output = app.wait_for(invoice, timeout=PATIENCE).output
    expected = ["a lamp in a box", "a chair in a box", "a vase in a box"]
    shown.expect(output == expected, f"then it ran once, with their results: {', '.join(map(str, output))}")


def _retry(app: Queuert, shown: Shown) -> None:
    shown.step("A service is down: failures are retried, later each time")
    chain = app.wait_for(app.start_chain(refund, Order(1)), timeout=PATIENCE)
    attempts = app.attempts(chain.id)
    for attempt in attempts:
        text = f"     attempt {attempt.attempt}: {attempt.outcome}"
        shown.out.line(text, f", {attempt.error_code}: {attempt.error_detail}" if attempt.error_code else "")
    outcomes = [attempt.outcome for attempt in attempts]
    shown.expect(outcomes == ["failed", "failed", "succeeded"], f"the third attempt succeeded: {chain.output}")


def _survive_a_kill(app: Queuert, shown: Shown, environment: dict[str, str]) -> None:
    shown.step("A worker process is killed in the middle of a job (SIGKILL: no goodbye)")
    chain = app.start_chain(print_label, Order(1))
    with _worker_process(environment) as process:
        job = _eventually(lambda: _running(app, chain.id, process))
        shown.out.line(f"     print-label runs in process {process.pid}, which is killed now")
        process.kill()
        process.wait()
    left = app.get_job(chain.id)
    shown.expect(left is not None and left.status == "running", "the job still carries the dead worker's lease")
    killed = time.monotonic()
    with app.worker(name="other"):
        chain = app.wait_for(chain, timeout=PATIENCE)
    outcomes = [attempt.outcome for attempt in app.attempts(chain.id)]
    shown.expect(
        outcomes == ["lost", "succeeded"],
        f"the lease ran out, another worker took the job over after {lasting(time.monotonic() - killed)}: {chain.output}",
    )
    final = app.get_job(chain.id)
    shown.expect(
        final is not None and final.completed_by not in (None, job.leased_by), "the dead worker could not have changed it"
    )
    if final is not None:
        draw_timeline(shown.out, [read_story(app, final)])


def _running(app: Queuert, job_id: str, process: subprocess.Popen[bytes]) -> Any:
    if process.poll() is not None:
        reason = process.stderr.read().decode(errors="replace").strip() if process.stderr else ""
        raise QueuertError(f"the worker process ended by itself: {reason or process.returncode}")
    job = app.get_job(job_id)
    return job if job is not None and job.status is Status.RUNNING else None


def _eventually(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not happen within {PATIENCE:g} seconds")
        time.sleep(0.02)
    return found


@contextmanager
def _worker_process(environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "queuert", "worker", "queuert.cli.shop:create_app"]
    command += ["--types", print_label.name, "--name", "doomed", "--log-level", "error"]
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _order(app: Queuert, order_id: int) -> str | None:
    with app.transaction() as tx:
        return shop.orders.state(tx, order_id)


@contextmanager
def _place(url: str | None) -> Iterator[tuple[str, str, str]]:
    """Where to run it: URL, table prefix, schema."""
    mark = uuid.uuid4().hex[:10]
    if url is None:
        with tempfile.TemporaryDirectory(prefix="queuert-demo-", ignore_cleanup_errors=True) as directory:
            yield f"sqlite:///{Path(directory) / 'shop.db'}", "queuert_", "public"
        return
    target = parse_target(url)
    if target.path is None:
        yield url, "queuert_", f"queuert_demo_{mark}"
        return
    made = not Path(target.path).exists()
    yield url, f"queuert_demo_{mark}_", "public"
    if made:
        for ending in ("", "-wal", "-shm"):
            Path(f"{target.path}{ending}").unlink(missing_ok=True)


def _remove(app: Queuert, prefix: str, schema: str) -> None:
    with app.transaction() as tx:
        if schema != "public":
            tx.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
            return
        shop.orders.drop(tx)
        for table in reversed(TABLES):
            tx.execute(f'DROP TABLE IF EXISTS "{prefix}{table}"')


@contextmanager
def _quiet() -> Iterator[None]:
    """The failures of this story are meant: no log lines between its own."""
    logger = logging.getLogger("queuert")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
