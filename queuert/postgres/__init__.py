"""All that is PostgreSQL's: connections, sessions, transactions, errors, queries, LISTEN and NOTIFY. Needs psycopg 3."""
