#!/usr/bin/env python3
"""`systemctl` for machines without systemd: starts what a unit starts, as its user, again when it ends."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

UNITS, RUN = Path("/etc/systemd/system"), Path("/run")


def settings(unit: str) -> dict[str, list[str]]:
    """Return what a unit's file says, by key."""
    found: dict[str, list[str]] = {}
    name, at, instance = unit.partition("@")
    for line in (UNITS / f"{name}{at}.service").read_text().replace("%i", instance).splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def environment(unit: dict[str, list[str]]) -> dict[str, str]:
    """Return the variables that a unit's command gets."""
    own = dict(pair.split("=", 1) for line in unit.get("Environment", []) for pair in shlex.split(line))
    for file in unit.get("EnvironmentFile", []):
        for line in Path(file).read_text().splitlines():
            if "=" in line and not line.startswith("#"):
                key, value = line.split("=", 1)
                own[key] = " ".join(shlex.split(value))
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", **own}


def signal_all(name: str, number: int) -> None:
    """Send a signal to all that a unit has started, as systemd does by the control group."""
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"UNIT={name}".encode() in entry.read_bytes().split(b"\0"):
                os.kill(int(entry.parent.name), number)


def supervise(name: str) -> None:
    """Keep the command of a unit running until SIGTERM."""
    unit = settings(name)
    user = unit["User"][0]
    for folder in " ".join(unit.get("StateDirectory", [])).split():
        made = Path("/var/lib") / folder
        made.mkdir(parents=True, exist_ok=True)
        subprocess.run(["chown", f"{user}:{user}", made], check=True)
        made.chmod(int(unit["StateDirectoryMode"][0], 8))
    own = {"UNIT": name}
    if unit.get("PrivateTmp") == ["yes"]:
        own["TMPDIR"] = str(RUN / f"{name}.tmp")
        subprocess.run(["install", "-d", "-o", user, own["TMPDIR"]], check=True)
    os.umask(int(unit["UMask"][0], 8))
    login = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    while True:
        process = subprocess.Popen(
            [*login, *unit["ExecStart"][0].split()],
            env=environment(unit) | own,
            cwd=unit["WorkingDirectory"][0],
            start_new_session=True,
        )
        while process.poll() is None and not stopping:
            time.sleep(0.05)
        if stopping:
            if unit.get("KillMode") == ["mixed"]:
                process.terminate()
            else:
                signal_all(name, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(40)
        signal_all(name, signal.SIGKILL)
        final = map(int, " ".join(unit.get("RestartPreventExitStatus", [])).split())
        code = process.wait()
        if stopping or (unit["Restart"][0] != "always" and not code) or code in final:
            return
        for _ in range(int(float(unit["RestartSec"][0]) / 0.05)):
            if stopping:
                return
            time.sleep(0.05)


def start(name: str) -> None:
    with (RUN / f"{name}.log").open("ab") as log:
        command = [sys.executable, __file__, "supervise", name]
        started = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    (RUN / f"{name}.pid").write_text(str(started.pid))


def stop(name: str) -> None:
    file = RUN / f"{name}.pid"
    if not file.exists():
        return
    pid = int(file.read_text())
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        time.sleep(0.05)
    file.unlink()


def main() -> None:
    verb, *words = sys.argv[1:]
    if verb == "supervise":
        supervise(words[0])
    with (RUN / "systemctl.log").open("a") as log:
        print(verb, *words, file=log)
    units = [word.removesuffix(".service") for word in words if word[0] != "-"]
    ours = [unit for unit in units if (UNITS / f"{re.sub('@.*', '@', unit)}.service").exists()]
    for unit in ours:
        if verb in ("stop", "restart") or (verb == "disable" and "--now" in words):
            stop(unit)
        if verb in ("start", "restart") or (verb == "enable" and "--now" in words):
            start(unit)


if __name__ == "__main__":
    main()
