"""The command `fedtide fleet`: who the boards of a SuperLink are, and how they are."""

from __future__ import annotations

import argparse
import json
import socket
import time
from collections.abc import Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedtide import ROOT
from fedtide.base.display import command
from fedtide.base.errors import SettingsError
from fedtide.base.files import check_replaceable, replacing
from fedtide.base.wording import new_console, say
from fedtide.engine.run_files import records_in
from fedtide.fleet.admission import register, unregister
from fedtide.fleet.boards import Boards
from fedtide.fleet.lasting import LastingRun
from fedtide.fleet.status import State, newest_run, prometheus, states, table_of
from fedtide.fleet.superlink import connected

PROG = "fedtide fleet"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    common = argparse.ArgumentParser(add_help=False)
    text = "name of the SuperLink in Flower's config.toml (lab)"
    common.add_argument("--superlink", default="lab", metavar="NAME", help=text)
    parser = argparse.ArgumentParser(prog=PROG, description="The boards of a federation.")
    verbs = parser.add_subparsers(required=True, metavar="{status,register,unregister,run}")
    status = verbs.add_parser("status", parents=[common], help="how all boards are (the default)")
    text = "run folder, or folder of runs (the newest one in /var/lib/fedtide/runs or runs)"
    status.add_argument("--run", metavar="FOLDER", help=text)
    status.add_argument("--json", action="store_true", help="print it as JSON")
    status.add_argument("--watch", action="store_true", help="print it again every few seconds")
    status.add_argument("--textfile", metavar="FILE", help="write it for Prometheus's node_exporter")
    status.add_argument("--serve", metavar="HOST:PORT", help="answer Prometheus at /metrics, until Ctrl-C")
    status.set_defaults(execute=_status)
    admit = verbs.add_parser("register", parents=[common], help="admit boards")
    admit.add_argument("keys", nargs="+", metavar="NAME=KEY.pub", help="a board's public key, by its name")
    text = "a name that has another key gets this one: the earlier one is no longer valid"
    admit.add_argument("--replace", action="store_true", help=text)
    admit.set_defaults(execute=_register)
    leave = verbs.add_parser("unregister", parents=[common], help="admit boards no longer")
    leave.add_argument("names", nargs="+", metavar="NAME")
    leave.set_defaults(execute=_unregister)
    run = verbs.add_parser("run", parents=[common], help="a run that goes on by itself until it has finished")
    run.add_argument("file", metavar="FILE.toml", help="the settings of flwr run --run-config")
    run.add_argument("--app", default=str(ROOT), metavar="FOLDER", help="the app (this project's)")
    run.set_defaults(execute=_run_on)
    asked = [*argv] or ["status"]
    return parser.parse_args(asked if asked[0] in (*verbs.choices, "-h", "--help") else ["status", *asked])


@command(PROG)
def main(argv: Sequence[str]) -> None:
    """Run the command."""
    options = parse(argv)
    options.execute(options)


def _register(options: argparse.Namespace) -> None:
    file = Boards(options.superlink)
    with file.locked(), connected(options.superlink) as superlink:
        register(superlink, file, _pairs(options.keys), options.replace, print)


def _unregister(options: argparse.Namespace) -> None:
    file = Boards(options.superlink)
    with file.locked(), connected(options.superlink) as superlink:
        unregister(superlink, file, [*dict.fromkeys(options.names)], print)


def _run_on(options: argparse.Namespace) -> None:
    LastingRun(Path(options.file), options.superlink, Path(options.app), partial(print, flush=True)).drive()


def _status(options: argparse.Namespace) -> None:
    if options.serve:
        _serve(options)
    while True:
        try:
            _show(options, look(options))
        except SettingsError as error:
            if not options.watch:
                raise
            say(new_console(stderr=True), f"{PROG}: error: {error}")  # it may be back in a moment
        if not options.watch:
            return
        time.sleep(5)


def look(options: argparse.Namespace) -> list[State]:
    """Return how the boards are now."""
    with connected(options.superlink) as superlink:
        nodes = superlink.nodes()
    folder = newest_run(options.run)
    records = records_in(folder, lenient=True) if folder else ()
    return states(nodes, Boards(options.superlink).read(), records)


def _show(options: argparse.Namespace, boards: list[State]) -> None:
    if options.textfile:
        target = Path(options.textfile)
        check_replaceable(target)
        with replacing(target) as temporary:
            temporary.write_text(prometheus(boards, time.time()), encoding="utf-8")
        return
    if options.json:
        print(json.dumps([own.as_json() for own in boards]), flush=True)
        return
    console = new_console()
    if options.watch and console.is_terminal:
        console.clear()
    console.print(table_of(boards, time.time()) if boards else "no boards are registered", highlight=False)


def _pairs(keys: Sequence[str]) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in keys]
    if bad := next((name for name, _, file in pairs if not (name and file)), None):
        raise SettingsError(f"{bad!r} is not NAME=KEY.pub")
    keys_of = {name: file for name, _, file in pairs}
    if len(keys_of) < len(pairs):
        raise SettingsError("a name is given twice")
    return keys_of


def _serve(options: argparse.Namespace) -> None:
    """Answer Prometheus until Ctrl-C."""
    host, _, port = options.serve.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SettingsError(f"serve is {options.serve!r}; give HOST:PORT, such as 127.0.0.1:9105")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            try:
                text = prometheus(look(options), time.time()).encode()
            except SettingsError as error:
                self.send_error(503, explain=str(error))
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing for each request."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    with Server((host, int(port)), Handler) as server:
        print(f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics", flush=True)
        server.serve_forever()
