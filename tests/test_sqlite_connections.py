"""SQLite: connections and transactions, with real files, threads and processes."""

# ruff: noqa: PT012 - what a block does when its body raises is what is tested

from __future__ import annotations

import itertools
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support import eventually
from support.racing import Background

from queuert.errors import (
    DatabaseUnavailableError,
    ForeignKeysDisabledError,
    QueuertError,
    StaleSnapshotError,
    TransactionMisuseError,
    TransactionRequiredError,
    UnsupportedDatabaseError,
)
from queuert.hooks import Hooks
from queuert.sqlite.database import SqliteDatabase
from queuert.sqlite.guard import GuardedConnection
from queuert.sqlite.vacuum import PAGES, vacuum_in_steps
from queuert.storage.loader import Query
from queuert.storage.names import Names

INSERT = Query("insert", ("INSERT INTO note (text) VALUES (:text) RETURNING id, text",))
COUNT = Query("count", ("SELECT count(*) FROM note",))
TEXTS = Query("texts", ("SELECT text FROM note ORDER BY id",))
BROKEN = Query("broken", ("SELECT nothing FROM nowhere",))


def create_table(database: SqliteDatabase) -> None:
    with database.block() as session:
        session.raw.execute("CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)")
        session.raw.execute("CREATE TABLE child (note_id INTEGER REFERENCES note (id) DEFERRABLE INITIALLY DEFERRED)")


def insert(database: SqliteDatabase, text: str) -> None:
    database.run(lambda session: session.run(INSERT, {"text": text}))


def texts(database: SqliteDatabase) -> list[str]:
    with database.read() as session:
        return [row[0] for row in session.run(TEXTS, {})]


@pytest.fixture
def file(sqlite_path: Path) -> Iterator[SqliteDatabase]:
    database = SqliteDatabase(sqlite_path, busy_timeout=5)
    create_table(database)
    yield database
    database.close()


@pytest.fixture(params=["file", "memory"])
def database(request: pytest.FixtureRequest, sqlite_path: Path) -> Iterator[SqliteDatabase]:
    database = SqliteDatabase(sqlite_path if request.param == "file" else ":memory:", busy_timeout=5)
    create_table(database)
    yield database
    database.close()


def script(code: str, *args: object, timeout: float = 60) -> str:
    """Run Python code in another process; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# Opening.


def test_constructing_touches_nothing(sqlite_path: Path) -> None:
    SqliteDatabase(sqlite_path)
    assert not sqlite_path.exists()


def test_every_connection_is_set_up(file: SqliteDatabase) -> None:
    def settings(conn: sqlite3.Connection) -> dict[str, object]:
        names = "journal_mode", "foreign_keys", "synchronous", "busy_timeout", "auto_vacuum"
        return {name: sqlite3.Cursor(conn).execute(f"PRAGMA {name}").fetchone()[0] for name in names}

    expected = {"journal_mode": "wal", "foreign_keys": 1, "synchronous": 2, "busy_timeout": 5000, "auto_vacuum": 2}
    with file.read() as session:
        assert settings(session.raw) == expected
    with file.block() as session:
        assert settings(session.raw) == expected


@pytest.mark.parametrize(("synchronous", "number"), [("off", 0), ("normal", 1), ("full", 2), ("extra", 3)])
def test_synchronous_is_as_asked_for(sqlite_path: Path, synchronous: Any, number: int) -> None:
    database = SqliteDatabase(sqlite_path, synchronous=synchronous)
    with database.block() as session:
        assert session.raw.execute("PRAGMA synchronous").fetchone() == (number,)
    database.close()


def test_bad_options_are_refused(sqlite_path: Path) -> None:
    with pytest.raises(ValueError, match="synchronous"):
        SqliteDatabase(sqlite_path, synchronous="fast")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ValueError, match="busy_timeout"):
        SqliteDatabase(sqlite_path, busy_timeout=-1)


def test_a_relative_path_means_the_directory_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    database = SqliteDatabase("test.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    create_table(database)
    database.close()
    assert (tmp_path / "test.db").exists()


@pytest.mark.parametrize("use", ["read", "block", "run"])
def test_what_cannot_be_opened_is_our_own_error(tmp_path: Path, use: str) -> None:
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"this is no database, but a text" * 100)
    for path, says in [
        (tmp_path, "is a directory"),
        (tmp_path / "missing" / "test.db", "does not exist"),
        (garbage, "not a database"),
    ]:
        database = SqliteDatabase(path)
        with pytest.raises(DatabaseUnavailableError, match=says):
            if use == "run":
                database.run(lambda session: None)
            else:
                with getattr(database, use)():
                    pass
    assert garbage.read_bytes().startswith(b"this is no database")


def test_an_old_sqlite_is_refused(sqlite_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(UnsupportedDatabaseError, match=r"3\.35\.0 or newer"), SqliteDatabase(sqlite_path).read():
        pass
    assert not sqlite_path.exists()


READ_ONLY = """
    import os, sys
    from queuert.errors import DatabaseUnavailableError
    from queuert.sqlite.database import SqliteDatabase
    from queuert.storage.loader import Query
    if os.getuid() == 0:
        os.setgid(65534), os.setuid(65534)
    database = SqliteDatabase(sys.argv[1])
    try:
        with database.block() as session:
            session.raw.execute("CREATE TABLE more (x)")
    except DatabaseUnavailableError as error:
        print(error)
    if sys.argv[2] == "readable":
        with database.read() as session:
            print(session.run(Query("q", ("SELECT count(*) FROM note",)), {}))
"""


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_read_only_file_is_our_own_error_and_can_still_be_read(tmp_path: Path, what: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:  # not pytest's, which other users may not enter
        directory = Path(name)
        database = SqliteDatabase(directory / "test.db")
        create_table(database)
        database.checkpoint()
        (directory / "test.db").chmod(0o444 if what == "file" else 0o666)
        directory.chmod(0o777 if what == "file" else 0o555)
        for side in directory.glob("test.db-*"):
            side.chmod(0o666)
        output = script(READ_ONLY, directory / "test.db", "readable")
        directory.chmod(0o777)
        database.close()
    assert "read-only" in output
    assert "[(0,)]" in output


OPEN_AT_ONCE = """
    import sys, time
    from queuert.sqlite.database import SqliteDatabase
    from queuert.storage.loader import Query
    while time.time() < float(sys.argv[2]):
        pass
    database = SqliteDatabase(sys.argv[1])
    with database.read() as session:
        assert session.raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    database.run(lambda session: session.run(Query("q", ("CREATE TABLE IF NOT EXISTS t (x)",)), {}))
    with database.block() as session:
        session.raw.execute("INSERT INTO t VALUES (1)")
    database.close()
    print("fine")
"""


def test_many_processes_open_a_new_file_at_once(tmp_path: Path) -> None:
    for round_number in range(3):
        path = tmp_path / f"{round_number}.db"
        at = time.time() + 1
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(OPEN_AT_ONCE), str(path), str(at)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(6)
        ]
        for process in processes:
            out, err = process.communicate(timeout=60)
            assert out.strip() == "fine", err
        conn = sqlite3.connect(path)
        assert conn.execute("SELECT count(*) FROM t").fetchone() == (6,)
        assert conn.execute("PRAGMA auto_vacuum").fetchone() == (2,)
        conn.close()


# Queries.


def test_statements_run_in_order_and_give_the_rows_of_the_last_that_has_any(database: SqliteDatabase) -> None:
    query = Query(
        "statements",
        (
            "INSERT INTO note (text) VALUES (:a), (:b) RETURNING id, text",
            "UPDATE note SET text = text || '!'",
            "SELECT text, :a FROM note ORDER BY 1",
        ),
    )
    no_rows = Query("no_rows", ("DELETE FROM note", "DELETE FROM child"))
    rows_before = Query("rows_before", ("SELECT :a", "DELETE FROM child"))
    with database.block() as session:
        assert session.run(query, {"a": "x", "b": "y"}) == [("x!", "x"), ("y!", "x")]
        assert session.run(TEXTS, {}) == [("x!",), ("y!",)]
        assert session.run(no_rows, {}) == []
        assert session.run(rows_before, {"a": 1}) == [(1,)]


# Transactions of ours.


def test_run_commits_and_flushes_its_hooks_afterwards(database: SqliteDatabase) -> None:
    seen: list[list[str]] = []

    def work(session: Any) -> str:
        session.run(INSERT, {"text": "a"})
        session.hooks.on_commit(lambda: seen.append(texts(database)))
        session.hooks.on_commit(lambda: insert(database, "from the effect"))
        return "result"

    assert database.run(work) == "result"
    assert seen == [["a"]]
    assert texts(database) == ["a", "from the effect"]


def test_run_rolls_back_and_forgets_its_hooks(database: SqliteDatabase) -> None:
    seen: list[int] = []

    def work(session: Any) -> None:
        session.run(INSERT, {"text": "a"})
        session.hooks.on_commit(lambda: seen.append(1))
        raise KeyError("no")

    with pytest.raises(KeyError):
        database.run(work)
    assert (texts(database), seen) == ([], [])
    insert(database, "next")
    assert texts(database) == ["next"]


def test_block_commits_or_rolls_back(database: SqliteDatabase) -> None:
    seen: list[str] = []
    with database.block() as session:
        session.raw.execute("INSERT INTO note (text) VALUES ('a')")
        session.hooks.on_commit(lambda: seen.append("a"))
        assert not seen
    with pytest.raises(KeyError), database.block() as session:
        session.raw.execute("INSERT INTO note (text) VALUES ('b')")
        session.hooks.on_commit(lambda: seen.append("b"))
        raise KeyError
    assert (texts(database), seen) == (["a"], ["a"])


def test_a_commit_that_fails_rolls_back(database: SqliteDatabase) -> None:
    seen: list[str] = []
    with pytest.raises(sqlite3.IntegrityError), database.block() as session:
        session.raw.execute("INSERT INTO note (text) VALUES ('a')")
        session.raw.execute("INSERT INTO child (note_id) VALUES (99)")
        session.hooks.on_commit(lambda: seen.append("a"))
    with pytest.raises(sqlite3.IntegrityError):
        database.run(lambda s: s.run(Query("q", ("INSERT INTO child (note_id) VALUES (99)",)), {}))
    assert (texts(database), seen) == ([], [])
    insert(database, "next")


def test_inside_a_block_nothing_else_of_ours_can_be_opened_on_this_thread(database: SqliteDatabase) -> None:
    with database.block() as session:
        for attempt in (database.read, database.block):
            with pytest.raises(TransactionRequiredError, match="conn="), attempt():
                pass
        with pytest.raises(TransactionRequiredError, match="conn="):
            database.run(lambda s: None)
        session.run(INSERT, {"text": "still usable"})
    assert texts(database) == ["still usable"]


def test_nothing_uncommitted_is_seen(database: SqliteDatabase) -> None:
    inside, leave = threading.Event(), threading.Event()

    def writer() -> None:
        with pytest.raises(KeyError), database.block() as session:
            session.run(INSERT, {"text": "uncommitted"})
            inside.set()
            leave.wait(10)
            raise KeyError

    thread = threading.Thread(target=writer)
    thread.start()
    assert inside.wait(10)
    with ThreadPoolExecutor(4) as pool:
        reads = [pool.submit(texts, database) for _ in range(8)]
        if not database.in_memory:
            assert [read.result(10) for read in reads] == [[]] * 8  # a file's readers do not even wait
        leave.set()
        assert [read.result(10) for read in reads] == [[]] * 8
    thread.join(10)


def test_a_read_has_one_snapshot(file: SqliteDatabase) -> None:
    with file.read() as session:
        assert session.run(COUNT, {}) == [(0,)]
        with ThreadPoolExecutor(1) as pool:
            pool.submit(insert, file, "later").result(10)
        assert session.run(COUNT, {}) == [(0,)]
    assert texts(file) == ["later"]


def test_a_reader_cannot_write(file: SqliteDatabase) -> None:
    with pytest.raises(sqlite3.OperationalError, match="readonly"), file.read() as session:
        session.run(INSERT, {"text": "x"})


def test_concurrent_readers_of_a_shared_connection_get_their_own_answers() -> None:
    database = SqliteDatabase(":memory:")
    create_table(database)
    echo = Query("echo", ("SELECT :value, (SELECT count(*) FROM note)",))

    def read(number: int) -> bool:
        with database.read() as session:
            return all(session.run(echo, {"value": number}) == [(number, 0)] for _ in range(200))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(read, range(12)))
    database.close()


def test_writers_go_in_the_order_they_came(database: SqliteDatabase) -> None:
    threads = []
    with database.block():
        for number in range(8):
            thread = threading.Thread(target=insert, args=(database, str(number)))
            thread.start()
            threads.append(thread)
            eventually(lambda expected=number + 1: database._lock.waiting_writers == expected)
    for thread in threads:
        thread.join(10)
    assert texts(database) == [str(number) for number in range(8)]


def test_many_threads_read_and_write(database: SqliteDatabase) -> None:
    def work(number: int) -> None:
        for step in range(20):
            insert(database, f"{number}-{step}")
            assert f"{number}-{step}" in texts(database)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(texts(database)) == 160


# Savepoints.


def test_a_savepoint_undoes_what_failed_and_keeps_the_rest(database: SqliteDatabase) -> None:
    seen: list[str] = []
    with database.block() as session:
        session.run(INSERT, {"text": "a"})
        with session.savepoint():
            session.run(INSERT, {"text": "b"})
        with pytest.raises(sqlite3.OperationalError), session.savepoint():
            session.run(INSERT, {"text": "c"})
            session.hooks.on_commit(lambda: seen.append("c"))
            session.run(BROKEN, {})
        with pytest.raises(KeyError), session.savepoint():
            session.run(INSERT, {"text": "d"})
            with session.savepoint():
                session.run(INSERT, {"text": "e"})
            raise KeyError
        with session.savepoint(), pytest.raises(KeyError), session.savepoint():
            session.run(INSERT, {"text": "f"})
            raise KeyError
        session.run(INSERT, {"text": "g"})
        session.hooks.on_commit(lambda: seen.append("end"))
    assert (texts(database), seen) == (["a", "b", "g"], ["end"])


def test_when_the_transaction_is_gone_the_first_error_is_told(database: SqliteDatabase) -> None:
    insert(database, "a")
    with pytest.raises(sqlite3.IntegrityError), database.block() as session, session.savepoint():
        session.raw.execute("INSERT OR ROLLBACK INTO note (text) VALUES ('a')")
    insert(database, "b")
    assert texts(database) == ["a", "b"]


# The guard of a block.

REFUSED: list[Any] = [
    lambda tx: tx.commit(),
    lambda tx: tx.rollback(),
    lambda tx: tx.close(),
    lambda tx: tx.executescript("SELECT 1"),
    lambda tx: tx.cursor().executescript("SELECT 1"),
    lambda tx: tx.__enter__(),
    lambda tx: setattr(tx, "isolation_level", None),
    lambda tx: setattr(tx, "isolation_level", "DEFERRED"),
    lambda tx: setattr(tx, "autocommit", True),
    lambda tx: tx.set_authorizer(None),
    lambda tx: tx.execute("COMMIT"),
    lambda tx: tx.execute("  ;-- a comment\n /* and another */ commit"),
    lambda tx: tx.execute("END TRANSACTION"),
    lambda tx: tx.execute("ROLLBACK"),
    lambda tx: tx.execute("BEGIN"),
    lambda tx: tx.cursor().execute("COMMIT"),
    lambda tx: tx.cursor(sqlite3.Cursor).execute("COMMIT"),
    lambda tx: tx.execute("ATTACH ':memory:' AS other"),
    lambda tx: tx.execute("DETACH main"),
    lambda tx: tx.execute("PRAGMA foreign_keys = OFF"),
    lambda tx: tx.execute("PRAGMA journal_mode(delete)"),
    lambda tx: tx.execute("PRAGMA busy_timeout = 1"),
    lambda tx: tx.execute("ROLLBACK TO queuert_savepoint"),
    lambda tx: tx.execute('RELEASE "QUEUERT_SAVEPOINT"'),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_would_end_the_transaction_is_refused_and_it_stays_usable(database: SqliteDatabase, number: int) -> None:
    insert(database, "before")  # our own COMMIT is in the statement cache now
    with database.block() as session:
        session.raw.execute("INSERT INTO note (text) VALUES ('a')")
        with pytest.raises(TransactionMisuseError, match="Refused"):
            REFUSED[number](session.raw)
        session.raw.execute("INSERT INTO note (text) VALUES ('b')")
        assert session.raw.in_transaction
    assert texts(database) == ["before", "a", "b"]


def test_the_connection_of_a_block_is_otherwise_an_ordinary_one(database: SqliteDatabase) -> None:
    class Mine(sqlite3.Cursor):
        pass

    with database.block() as session:
        tx = session.raw
        assert isinstance(tx, sqlite3.Connection)
        tx.executemany("INSERT INTO note (text) VALUES (?)", [("a",), ("b",)])
        tx.execute("SAVEPOINT mine")
        tx.execute("DELETE FROM note")
        tx.execute("ROLLBACK TO mine")
        tx.execute("RELEASE mine")
        assert isinstance(tx.cursor(Mine), Mine)
        assert tx.execute("PRAGMA table_info(note)").fetchall()
        assert tx.execute("PRAGMA journal_mode").fetchone()
        tx.row_factory = sqlite3.Row
        tx.text_factory = bytes
        assert tx.execute("SELECT text FROM note").fetchone()["text"] == b"a"
        assert session.run(TEXTS, {}) == [("a",), ("b",)]
        assert tx.text_factory is bytes
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            tx.execute("SELECT 1 FROM nowhere")
    with database.block() as session:
        assert session.raw.execute("SELECT text FROM note").fetchone() == ("a",)


def test_the_connection_of_a_block_does_not_work_after_it(database: SqliteDatabase) -> None:
    with database.block() as session:
        tx = session.raw
        cursor = tx.execute("SELECT 1")
    for use in (
        lambda: tx.execute("SELECT 1"),
        lambda: tx.cursor(),
        lambda: tx.commit(),
        lambda: database.join(tx),
    ):
        with pytest.raises(TransactionMisuseError):
            use()
    with pytest.raises(sqlite3.ProgrammingError):
        cursor.fetchall()
    with database.block() as session:
        assert session.raw.execute("SELECT 1").fetchone() == (1,)


def test_a_transaction_that_a_conflict_clause_ended_is_an_error_and_commits_nothing_more(
    database: SqliteDatabase,
) -> None:
    insert(database, "a")

    def swallow(tx: GuardedConnection) -> None:
        with pytest.raises(sqlite3.IntegrityError):
            tx.execute("INSERT OR ROLLBACK INTO note (text) VALUES ('a')")

    with pytest.raises(TransactionMisuseError, match="rolled back"), database.block() as session:
        session.raw.execute("INSERT INTO note (text) VALUES ('lost')")
        swallow(session.raw)
    with pytest.raises(TransactionMisuseError, match="rolled back"), database.block() as session:
        swallow(session.raw)
        session.raw.execute("INSERT INTO note (text) VALUES ('alone')")
    with pytest.raises(TransactionMisuseError, match="rolled back"), database.block() as session:
        swallow(session.raw)
        session.run(INSERT, {"text": "alone"})
    assert texts(database) == ["a"]


def test_a_cursor_left_open_does_not_keep_an_old_snapshot(file: SqliteDatabase, sqlite_path: Path) -> None:
    for number in range(50):
        insert(file, str(number))
    left = []
    with file.block() as session:
        left.append(session.raw.execute("SELECT * FROM note"))
        left[0].fetchone()
        hidden = sqlite3.Cursor(session.raw)  # one that the guard knows nothing of
        hidden.execute("SELECT * FROM note").fetchone()
    other = sqlite3.connect(sqlite_path)
    other.execute("INSERT INTO note (text) VALUES ('from outside')")
    other.commit()
    other.close()
    insert(file, "after")
    with file.block() as session:
        session.run(INSERT, {"text": "block"})
    assert texts(file)[-3:] == ["from outside", "after", "block"]


# Other processes.

HOLD = """
    import sqlite3, sys
    conn = sqlite3.connect(sys.argv[1], isolation_level=None)
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO note (text) VALUES ('theirs')")
    print("held", flush=True)
    sys.stdin.readline()
    conn.execute("COMMIT")
    print("done", flush=True)
"""


@pytest.fixture
def holder(sqlite_path: Path, file: SqliteDatabase) -> Iterator[Any]:
    """Another process in the middle of a transaction, until told to go on."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLD), str(sqlite_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.communicate("\n", timeout=10)


def test_a_writer_waits_for_another_process(holder: Any, file: SqliteDatabase) -> None:
    writing = Background(lambda: insert(file, "ours"))
    eventually(lambda: file._lock._writer)  # it has our lock, and tries to get the file's
    holder.stdin.write("\n")
    holder.stdin.flush()
    writing.result()
    assert texts(file) == ["theirs", "ours"]


def test_a_writer_that_waits_too_long_gets_the_drivers_error(holder: Any, sqlite_path: Path) -> None:
    impatient = SqliteDatabase(sqlite_path, busy_timeout=0.1)
    started = time.monotonic()
    with pytest.raises(sqlite3.OperationalError, match="locked") as caught:
        impatient.run(lambda session: session.run(INSERT, {"text": "x"}))
    assert time.monotonic() - started > 0.25, "three tries"
    assert impatient.is_transient(caught.value)
    if sys.version_info >= (3, 11):
        assert any("conn=" in note for note in caught.value.__notes__)
    with pytest.raises(sqlite3.OperationalError, match="locked"), impatient.block():
        pass
    assert texts(impatient) == []  # a reader does not wait
    impatient.close()


def test_our_own_transaction_that_read_first_starts_again_when_its_snapshot_is_old(
    file: SqliteDatabase, sqlite_path: Path
) -> None:
    calls = []

    def work(session: Any) -> int:
        calls.append(1)
        found = session.run(COUNT, {})[0][0]
        if len(calls) == 1:
            other = sqlite3.connect(sqlite_path)
            other.execute("INSERT INTO note (text) VALUES ('meanwhile')")
            other.commit()
            other.close()
        session.run(INSERT, {"text": f"after {found}"})
        return int(found)

    assert file.run(work) == 1
    assert texts(file) == ["meanwhile", "after 1"]


def test_others_that_write_all_the_time_do_not_starve_a_transaction_that_read_first(
    file: SqliteDatabase, sqlite_path: Path
) -> None:
    kept_out = []

    def work(session: Any) -> None:
        session.run(COUNT, {})
        with closing(sqlite3.connect(sqlite_path, timeout=0)) as other:
            try:
                other.execute("INSERT INTO note (text) VALUES ('meanwhile')")
                other.commit()
            except sqlite3.OperationalError:
                kept_out.append(1)
        session.run(INSERT, {"text": "ours"})

    file.run(work)
    assert texts(file) == ["meanwhile", "ours"]
    assert len(kept_out) == 1


# The user's own connections.


def connect(path: Path, **options: Any) -> sqlite3.Connection:
    conn = sqlite3.connect(path, **options)
    conn.execute("PRAGMA foreign_keys = ON")
    return conn


@pytest.mark.parametrize("level", ["", "DEFERRED", "IMMEDIATE", "EXCLUSIVE"])
def test_a_connection_that_begins_by_itself_is_joined(file: SqliteDatabase, sqlite_path: Path, level: Any) -> None:
    conn = connect(sqlite_path, isolation_level=level)
    session = file.join(conn)
    assert not conn.in_transaction  # only our first statement opens it
    query = Query("with", ("WITH v AS (SELECT :text AS t) INSERT INTO note (text) SELECT t FROM v RETURNING text",))
    assert session.run(query, {"text": "a"}) == [("a",)]
    assert conn.in_transaction
    assert texts(file) == []
    conn.rollback()
    assert texts(file) == []
    with file.join(conn).savepoint():
        pass
    assert conn.in_transaction  # a savepoint alone would have committed when released
    file.join(conn).run(INSERT, {"text": "b"})
    conn.commit()
    assert (texts(file), conn.isolation_level) == (["b"], level)
    conn.close()


def test_a_connection_in_autocommit_needs_a_transaction(file: SqliteDatabase, sqlite_path: Path) -> None:
    conn = connect(sqlite_path, isolation_level=None)
    with pytest.raises(TransactionRequiredError):
        file.join(conn)
    assert file.join(conn, reading=True).run(COUNT, {}) == [(0,)]
    conn.execute("BEGIN")
    file.join(conn).run(INSERT, {"text": "a"})
    conn.execute("COMMIT")
    assert texts(file) == ["a"]
    conn.close()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Connection.autocommit came with Python 3.12")
def test_the_autocommit_attribute_is_understood(file: SqliteDatabase, sqlite_path: Path) -> None:
    connect: Any = sqlite3.connect  # the type checker may know an older Python's
    conn = connect(sqlite_path, autocommit=True)
    file.configure(conn)
    with pytest.raises(TransactionRequiredError):
        file.join(conn)
    conn.close()
    conn = connect(sqlite_path, autocommit=False)
    file.configure(conn)
    assert conn.autocommit is False
    file.join(conn).run(INSERT, {"text": "a"})
    conn.rollback()
    file.join(conn).run(INSERT, {"text": "b"})
    conn.commit()
    conn.close()
    assert texts(file) == ["b"]


def test_the_users_factories_are_left_as_found(file: SqliteDatabase, sqlite_path: Path) -> None:
    conn = connect(sqlite_path, detect_types=sqlite3.PARSE_COLNAMES)
    conn.row_factory = sqlite3.Row
    conn.text_factory = bytes
    session = file.join(conn)
    assert session.run(INSERT, {"text": "a"}) == [(1, "a")]
    with pytest.raises(sqlite3.IntegrityError):
        session.run(INSERT, {"text": "a"})
    assert conn.row_factory is sqlite3.Row
    assert conn.text_factory is bytes
    assert conn.execute("SELECT text FROM note").fetchone()["text"] == b"a"
    conn.close()


def test_foreign_keys_must_be_on(file: SqliteDatabase, sqlite_path: Path) -> None:
    conn = sqlite3.connect(sqlite_path)
    with pytest.raises(ForeignKeysDisabledError, match="configure_connection"):
        file.join(conn)
    assert file.join(conn, reading=True).run(COUNT, {}) == [(0,)]
    unchecked = SqliteDatabase(sqlite_path, check_foreign_keys=False)
    unchecked.join(conn).run(INSERT, {"text": "a"})
    with pytest.raises(QueuertError, match="before"):
        file.configure(conn)
    conn.rollback()
    file.configure(conn)
    assert conn.execute("PRAGMA foreign_keys").fetchone() == (1,)
    assert conn.execute("PRAGMA busy_timeout").fetchone() == (5000,)
    file.join(conn)
    conn.close()


def test_a_users_in_memory_connection_can_be_configured(file: SqliteDatabase) -> None:
    conn = sqlite3.connect(":memory:")
    file.configure(conn)
    assert conn.execute("PRAGMA foreign_keys").fetchone() == (1,)
    conn.close()


def test_a_block_is_joined_with_its_own_session(database: SqliteDatabase) -> None:
    with database.block() as session:
        assert database.join(session.raw) is session
        assert database.join(session.raw, hooks=Hooks()) is session
        database.configure(session.raw)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(database.join, session.raw).result(10) is session


def test_a_stale_snapshot_says_what_to_do(file: SqliteDatabase, sqlite_path: Path) -> None:
    conn = connect(sqlite_path, isolation_level=None)
    conn.execute("BEGIN")
    conn.execute("SELECT count(*) FROM note").fetchall()
    insert(file, "meanwhile")
    with pytest.raises(StaleSnapshotError, match="BEGIN IMMEDIATE"):
        file.join(conn).run(INSERT, {"text": "late"})
    conn.execute("ROLLBACK")
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("SELECT count(*) FROM note").fetchall()
    file.join(conn).run(INSERT, {"text": "late"})
    conn.execute("COMMIT")
    conn.close()
    assert texts(file) == ["meanwhile", "late"]


def test_a_savepoint_on_a_users_connection(file: SqliteDatabase, sqlite_path: Path) -> None:
    conn = connect(sqlite_path)
    hooks = Hooks()
    session = file.join(conn, hooks=hooks)
    session.run(INSERT, {"text": "a"})
    with pytest.raises(sqlite3.OperationalError), session.savepoint():
        session.run(INSERT, {"text": "b"})
        session.run(BROKEN, {})
    with session.savepoint():
        session.run(INSERT, {"text": "c"})
    conn.commit()
    conn.close()
    assert texts(file) == ["a", "c"]


def test_a_shared_cache_connection_is_joined(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "test.db")
    create_table(database)
    conn = sqlite3.connect(f"file:{tmp_path}/test.db?cache=shared", uri=True)
    database.configure(conn)
    database.join(conn).run(INSERT, {"text": "a"})
    conn.commit()
    conn.close()
    assert texts(database) == ["a"]
    database.close()


# Maintenance and the end.


def test_vacuum_gives_pages_back(file: SqliteDatabase, sqlite_path: Path) -> None:
    with file.block() as session:
        session.raw.executemany("INSERT INTO note (text) VALUES (?)", [(f"{n:02000}",) for n in range(500)])
    with file.block() as session:
        session.raw.execute("DELETE FROM note")
    assert file.checkpoint()
    before = sqlite_path.stat().st_size
    assert file.vacuum(Names())
    assert file.checkpoint()
    assert sqlite_path.stat().st_size < before / 10
    assert (sqlite_path.parent / "test.db-wal").stat().st_size == 0


def free_pages(database: SqliteDatabase, number: int) -> None:
    """Delete so many pages full of rows."""
    with database.block() as session:
        session.raw.executemany("INSERT INTO note (text) VALUES (?)", [(f"{n:03500}",) for n in range(number)])
    with database.block() as session:
        session.raw.execute("DELETE FROM note")


def test_others_write_while_pages_are_given_back(file: SqliteDatabase, sqlite_path: Path) -> None:
    free_pages(file, 30 * PAGES)
    other = sqlite3.connect(sqlite_path, isolation_level=None, timeout=10)
    free = other.execute("PRAGMA freelist_count").fetchone()[0]
    seen: set[int] = set()
    with ThreadPoolExecutor(1) as pool:
        vacuum = pool.submit(file.vacuum, Names())
        for n in itertools.count():
            if vacuum.done():
                break
            insert(file, f"from this process {n}")
            other.execute("INSERT INTO note (text) VALUES (?)", (f"from another {n}",))
            seen.add(other.execute("PRAGMA freelist_count").fetchone()[0])
        assert vacuum.result()
    other.close()
    assert len([left for left in seen if 0 < left < free - PAGES]) >= 3, "it was seen half done, more than once"


def test_giving_pages_back_can_be_stopped_and_does_not_wait_for_what_others_free(file: SqliteDatabase) -> None:
    free_pages(file, 3 * PAGES)
    stop = threading.Event()
    stop.set()
    assert file.vacuum(Names(), stop=stop)
    with file.read() as session:
        assert session.raw.execute("PRAGMA freelist_count").fetchone()[0] >= 3 * PAGES
    steps: list[int] = []
    vacuum_in_steps(lambda pages: steps.append(pages) or 3 * PAGES)  # somebody frees as many again each time
    assert steps == [PAGES] * 4


def test_a_file_without_incremental_vacuum_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "old.db"
    conn = sqlite3.connect(path)
    conn.execute("CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT)")
    conn.close()
    database = SqliteDatabase(path)
    assert not database.vacuum(Names())
    assert "vacuum(full=True)" in caplog.text
    assert database.vacuum(Names(), full=True)
    assert database.vacuum(Names())
    database.close()


def test_memory_can_be_vacuumed_and_checkpointed() -> None:
    database = SqliteDatabase(":memory:")
    create_table(database)
    assert database.vacuum(Names())
    assert database.vacuum(Names(), full=True)
    assert database.checkpoint()
    database.close()


def test_a_checkpoint_does_not_wait_for_a_reader(file: SqliteDatabase) -> None:
    with file.read() as session:
        session.run(COUNT, {})
        with ThreadPoolExecutor(1) as pool:
            pool.submit(insert, file, "x").result(10)
            started = time.monotonic()
            assert not pool.submit(file.checkpoint).result(10)
            assert time.monotonic() - started < 3
    assert file.checkpoint()


def test_a_watcher_sees_that_something_changed(file: SqliteDatabase) -> None:
    watcher = file.open_watcher()
    before = watcher.execute("PRAGMA data_version").fetchone()
    insert(file, "x")
    assert watcher.execute("PRAGMA data_version").fetchone() != before
    watcher.close()
    with pytest.raises(UnsupportedDatabaseError):
        SqliteDatabase(":memory:").open_watcher()


def test_close_is_idempotent_and_a_later_call_opens_again(file: SqliteDatabase) -> None:
    insert(file, "a")
    assert texts(file) == ["a"]
    file.close()
    file.close()
    assert not file._connections.opened
    insert(file, "b")
    assert texts(file) == ["a", "b"]


def test_close_while_in_use_closes_when_given_back(file: SqliteDatabase) -> None:
    with file.block() as session, ThreadPoolExecutor(1) as pool:
        pool.submit(file.close).result(10)
        session.run(INSERT, {"text": "a"})
    assert not file._connections.opened
    with file.read() as session:
        file.close()
        assert session.run(COUNT, {}) == [(1,)]
    assert not file._connections.opened
    with file.block() as session:
        file.close()
        session.run(INSERT, {"text": "b"})
    assert texts(file) == ["a", "b"]
    with file._maintenance() as conn, ThreadPoolExecutor(1) as pool:
        pool.submit(file.close).result(10)
        assert conn in file._connections.opened
    assert not file._connections.opened


FORK = """
    import os, sys, threading
    from queuert.errors import DatabaseUnavailableError
    from queuert.sqlite import database as sqlite
    from queuert.errors import TransactionMisuseError
    from queuert.sqlite.database import SqliteDatabase
    from queuert.storage.loader import Query
    insert = Query("insert", ("INSERT INTO note (text) VALUES (:text)",))
    count = Query("count", ("SELECT count(*) FROM note",))

    def add(database, text):
        database.run(lambda session: session.run(insert, {"text": text}))

    def rows(database):
        with database.read() as session:
            return session.run(count, {})[0][0]

    def in_child(work):
        pid = os.fork()
        if pid == 0:
            try:
                work()
            except BaseException as error:
                print("child:", repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            sys.exit(0)  # an ordinary end, which drops all objects
        assert os.waitpid(pid, 0)[1] == 0

    database = SqliteDatabase(sys.argv[1], busy_timeout=5)
    memory = SqliteDatabase(":memory:")
    for each in (database, memory):
        with each.block() as session:
            session.raw.execute("CREATE TABLE note (text TEXT)")
    add(database, "parent")
    assert rows(database) == 1
    mine = set(database._connections.opened)

    def child():
        assert not database._connections.opened
        add(database, "child")
        assert rows(database) == 2
        assert not (mine & database._connections.opened)
        try:
            rows(memory)
        except DatabaseUnavailableError as error:
            assert "process" in str(error)
        else:
            raise AssertionError("memory")

    in_child(child)
    assert rows(database) == 2

    # A child made inside another thread's block, which does not end, inherits SQLite's locks without holding them.
    sqlite.FORK_PATIENCE = 0.2
    def refused():
        for each in (database, SqliteDatabase(sys.argv[1])):
            try:
                rows(each)
            except DatabaseUnavailableError as error:
                assert "Fork outside of transactions" in str(error)
            else:
                raise AssertionError("used")
    inside, leave = threading.Event(), threading.Event()
    def hold():
        with database.block() as session:
            session.run(insert, {"text": "held"})
            inside.set()
            leave.wait(20)
    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(20)
    in_child(refused)
    leave.set()
    thread.join()
    assert rows(database) == 3

    # A child made inside its own block cannot commit it.
    try:
        with database.block() as session:
            session.run(insert, {"text": "once"})
            pid = os.fork()
    except TransactionMisuseError as error:
        os._exit(0 if "fork" in str(error) else 1)
    assert pid
    assert os.waitpid(pid, 0)[1] == 0
    assert rows(database) == 4
    add(database, "after")
    database.close()
    print("fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
def test_a_forked_child_has_its_own_connections(sqlite_path: Path) -> None:
    assert script(FORK, sqlite_path) == "fine"
    conn = sqlite3.connect(sqlite_path)
    assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert conn.execute("SELECT count(*) FROM note").fetchone() == (5,)
    conn.close()
