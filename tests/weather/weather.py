"""Makes a PostgreSQL server refuse an act of ours with an error of any code, while it lasts."""

from __future__ import annotations

from typing import Any

import psycopg

SET_UP = """
    CREATE TABLE fault (act text PRIMARY KEY, code text NOT NULL);
    CREATE SEQUENCE fault_seen;

    CREATE FUNCTION meet_fault() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        met text := CASE
            WHEN TG_OP = 'INSERT' THEN 'start'
            WHEN NEW.status = 'running' AND OLD.status = 'pending' THEN 'claim'
            WHEN NEW.status = 'running' THEN 'renew'
            WHEN NEW.status = 'completed' THEN 'complete'
            WHEN OLD.status = 'running' AND OLD.leased_until < clock_timestamp() THEN 'reap'
            WHEN OLD.status = 'running' THEN 'fail'
            ELSE 'other'
        END;
        raised text;
    BEGIN
        SELECT f.code INTO raised FROM public.fault f WHERE f.act = met;
        IF raised IS NOT NULL THEN
            PERFORM nextval('public.fault_seen');
            RAISE EXCEPTION 'the weather is bad' USING ERRCODE = raised;
        END IF;
        RETURN NEW;
    END
    $$;

    CREATE TRIGGER meet_fault BEFORE INSERT OR UPDATE ON queuert_job FOR EACH ROW EXECUTE FUNCTION meet_fault();
"""


class PostgresFaults:
    """A trigger on the job table raises what a side table names: a real error of the real server, with its SQLSTATE."""

    def __init__(self, url: str) -> None:
        self._conn: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True)
        self._conn.execute(SET_UP)

    def __enter__(self) -> PostgresFaults:
        return self

    def __exit__(self, *_: object) -> None:
        self._conn.close()

    def begin(self, act: str, code: str) -> None:
        self._conn.execute("INSERT INTO fault (act, code) VALUES (%s, %s)", (act, code))

    def end(self) -> None:
        self._conn.execute("DELETE FROM fault")

    @property
    def met(self) -> int:
        """How often something was refused; a sequence keeps what a rollback would undo."""
        [row] = self._conn.execute("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM fault_seen").fetchall()
        return int(row[0])

    def execute(self, sql: str, *params: object) -> list[Any]:
        cursor = self._conn.execute(sql, params)
        return cursor.fetchall() if cursor.description else []
