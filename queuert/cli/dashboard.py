"""`queuert dashboard`: the pages of `queuert.dashboard`, served on this machine."""

from __future__ import annotations

import argparse
import os
from typing import Any, Final

from queuert.cli.exits import OK, UsageError
from queuert.cli.loading import open_app
from queuert.cli.output import Output
from queuert.cli.parser import add_command

TOKEN: Final = "QUEUERT_DASHBOARD_TOKEN"


def add(commands: Any) -> None:
    command = add_command(
        commands,
        "dashboard",
        "serve pages that show how things stand, and repair what is wrong",
        details="On an address that other machines can reach it needs a token.",
        example="""
            queuert dashboard --app shop:app
            queuert dashboard --url sqlite:///shop.db --port 9000 --read-only""",
    )
    command.add_argument("--host", default="127.0.0.1", help="the address to serve on (127.0.0.1)")
    command.add_argument("--port", type=port, default=8765, metavar="N", help="the port to serve on; 0 takes a free one (8765)")
    command.add_argument("--token", metavar="SECRET", help=f"who does not have it is not let in (or {TOKEN})")
    command.add_argument("--read-only", action="store_true", help="show everything, change nothing")
    command.add_argument("--base-path", default="", metavar="PATH", help="where a proxy has put it, such as /queue")
    command.set_defaults(run=run)


def port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: it is a number from 0 to 65535")
    return int(text)


def run(args: argparse.Namespace) -> int:
    try:
        from queuert.dashboard import create_app
        from queuert.dashboard.serving import DashboardServer
    except ImportError as error:
        raise UsageError(str(error)) from error
    token = args.token if args.token is not None else os.environ.get(TOKEN) or None
    with open_app(args) as app:
        try:
            dashboard = create_app(app, token=token, read_only=args.read_only, base_path=args.base_path)
            server = DashboardServer(dashboard, args.host, args.port)
        except ValueError as error:
            raise UsageError(str(error)) from error
        Output().line(f"The dashboard is at {server.url} until Ctrl-C." + (" Open it with ?token=..." if token else ""))
        server.serve()
    return OK
