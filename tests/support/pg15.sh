#!/usr/bin/env bash
# Runs a command against a throw-away server of the PostgreSQL that is installed here:
#     tests/support/pg15.sh pytest -m conformance -k postgres
# The command finds the server's URL in QUEUERT_TEST_POSTGRES.
set -euo pipefail

for dir in /usr/lib/postgresql/*/bin /usr/local/pgsql/bin; do
    PATH="$PATH:$dir"
done
if ! command -v initdb >/dev/null || ! command -v pg_ctl >/dev/null; then
    echo "SKIPPED: no PostgreSQL server is installed here (initdb and pg_ctl are not on the PATH)." >&2
    exit 0
fi

# The server refuses to run as root, so it runs as somebody else then.
as_server=()
if [ "$(id -u)" = 0 ]; then
    for user in postgres nobody; do
        if id "$user" >/dev/null 2>&1; then break; fi
    done
    if command -v setpriv >/dev/null; then
        as_server=(setpriv --reuid="$(id -u "$user")" --regid="$(id -g "$user")" --clear-groups)
    elif command -v runuser >/dev/null; then
        as_server=(runuser -u "$user" --)
    else
        echo "SKIPPED: the server refuses root, and there is neither setpriv nor runuser here." >&2
        exit 0
    fi
fi

base=$(mktemp -d "${TMPDIR:-/tmp}/queuert-pg15-XXXXXX")
if [ ${#as_server[@]} -gt 0 ]; then chown "$user" "$base"; fi

# Stays in the server's own directory: it need not be able to read the one we came from.
server() { (cd "$base" && "${as_server[@]}" env HOME="$base" LC_ALL=C "$@"); }

clean_up() {
    if [ -f "$base/data/postmaster.pid" ]; then
        server pg_ctl -D "$base/data" -m fast -w stop >/dev/null || true
    fi
    rm -rf "$base"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

server initdb -D "$base/data" -U postgres --auth=trust --encoding=UTF8 --locale=C >"$base.log" 2>&1 || { cat "$base.log" >&2; rm -f "$base.log"; exit 1; }
rm -f "$base.log"

# A port that was free a moment ago may be taken when the server wants it: try a few.
for try in 1 2 3 4 5; do
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    options="-p $port -c listen_addresses=127.0.0.1 -c unix_socket_directories=$base -c max_connections=200"
    if server pg_ctl -D "$base/data" -l "$base/server.log" -o "$options" -w start >/dev/null; then break; fi
    if [ "$try" = 5 ]; then
        cat "$base/server.log" >&2
        exit 1
    fi
done

echo "$(server postgres --version) on port $port" >&2
export QUEUERT_TEST_POSTGRES="postgresql://postgres@127.0.0.1:$port/postgres"
"$@"
