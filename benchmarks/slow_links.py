"""A federation whose devices are network namespaces behind slow links, as on bad Wi-Fi.

    sudo python benchmarks/slow_links.py --delay 0.05 --rate 1e6 --loss 0.02

Each device has a namespace of its own, joined to the server's by two TUN devices. Packets between them are
delayed, limited and lost by this program, as `tc netem` would do it, which not every kernel has. The scripts
of deploy/ make keys, register and start all; printed are the seconds from nothing to each of three rounds.
"""

from __future__ import annotations

import argparse
import fcntl
import heapq
import json
import os
import random
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from flower import end_processes

DEPLOY = Path(__file__).parents[1] / "deploy"
BIN = Path(sys.executable).parent
SERVER, PORT = "10.77.255.1", "8000"
TUNSETIFF, TUN, NO_PI = 0x400454CA, 0x0001, 0x1000
MOST_QUEUED = 64 * 1024  # bytes that wait for their turn on a link; more are dropped


def open_tun(name: str) -> int:
    """Make a TUN device in this namespace; return its descriptor, which stays with it wherever it moves."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", name.encode(), TUN | NO_PI))
    return descriptor


def carry(ends: dict[int, int], delay: float, rate: float, loss: float) -> None:
    """Carry packets from each descriptor to its other end: for ever.

    Parameters
    ----------
    ends
        The other end of each descriptor.
    delay
        Seconds that a packet is on its way.
    rate
        Bits a second in each direction.
    loss
        Share of the packets that is lost.
    """
    rng = random.Random(1)
    free_at = dict.fromkeys(ends, 0.0)
    flying: list[tuple[float, int, int, bytes]] = []
    number = 0
    while True:
        patience = max(0.0, flying[0][0] - time.monotonic()) if flying else 1.0
        ready, _, _ = select.select([*ends], [], [], patience)
        now = time.monotonic()
        for end in ready:
            packet = os.read(end, 65536)
            waiting = max(0.0, free_at[end] - now) * rate / 8
            if waiting > MOST_QUEUED or rng.random() < loss:
                continue
            free_at[end] = max(now, free_at[end]) + 8 * len(packet) / rate
            number += 1
            heapq.heappush(flying, (free_at[end] + delay, number, ends[end], packet))
        while flying and flying[0][0] <= now:
            _, _, end, packet = heapq.heappop(flying)
            os.write(end, packet)


def sh(command: str) -> None:
    """Call a command."""
    subprocess.run(["sh", "-ec", command], check=True)


def start(command: list[str], folder: Path, name: str, **env: str) -> subprocess.Popen[bytes]:
    """Start a process that logs into the folder."""
    own = {"FLWR_HOME": str(folder / "flower"), "FLWR_TELEMETRY_ENABLED": "0", "BIN": str(BIN)}
    path = {"PATH": f"{BIN}:{os.environ['PATH']}"}
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            command, env=os.environ | own | path | env, stdout=log, stderr=log, cwd=folder
        )


def call(folder: Path, name: str, *command: str, **env: str) -> None:
    """Call a program and wait for it."""
    process = start([*command], folder, name, **env)
    if process.wait():
        raise SystemExit(f"{command[0]}: {(folder / f'{name}.log').read_text()}")


def link(device: int) -> tuple[subprocess.Popen[bytes], dict[int, int]]:
    """Make the namespace of a device; return the process that keeps it, and the ends of the link."""
    holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    near, far, address = f"near{device}", f"far{device}", f"10.77.{device}.2"
    ends = open_tun(near), open_tun(far)
    sh(f"ip link set {near} mtu 1400 up; ip route add {address} dev {near} src {SERVER}")
    while os.readlink(f"/proc/{holder.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        time.sleep(0.05)
    sh(f"ip link set {far} netns {holder.pid}")
    inside = f"nsenter --net --target {holder.pid} ip"
    sh(f"{inside} link set lo up; {inside} addr add {address}/32 dev {far}")
    sh(f"{inside} link set {far} mtu 1400 up")
    sh(f"{inside} route add default dev {far} src {address}")
    return holder, {ends[0]: ends[1], ends[1]: ends[0]}


def federation(
    folder: Path, devices: int, config: str, quality: tuple[float, float, float]
) -> list[subprocess.Popen[bytes]]:
    """Follow docs/deploy.md: certificates, SuperLink, keys, registration, devices, a run."""
    (folder / "flower").mkdir()
    call(folder, "certificates", str(DEPLOY / "certificates.sh"), SERVER)
    authority = folder / "certificates" / "ca.crt"
    (folder / "flower" / "config.toml").write_text(
        f'[superlink]\ndefault = "lab"\n\n[superlink.lab]\naddress = "{SERVER}:{PORT}"\n'
        f'root-certificates = "{authority}"\n'
    )
    settings = {"CERTIFICATES": str(folder / "certificates"), "HOST": "0.0.0.0", "PORT": PORT}
    settings |= {"DATABASE": str(folder / "superlink.db")}
    started = [start([str(DEPLOY / "superlink.sh")], folder, "superlink", **settings)]
    while subprocess.run(["sh", "-c", f"ss -ltn | grep -q :{PORT}"], check=False).returncode:
        time.sleep(0.2)
    for device in range(devices):
        holder, ends = link(device)
        started.append(holder)
        threading.Thread(target=carry, args=(ends, *quality), daemon=True).start()
        call(folder, f"key-{device}", str(DEPLOY / "key.sh"), str(folder / f"device-{device}"))
        key = f"pi-{device}={folder / f'device-{device}'}.pub"
        register = [sys.executable, "-m", "fedtide", "fleet", "register", key]
        call(folder, f"register-{device}", *register, PYTHONPATH=str(DEPLOY.parent))
        (folder / f"state-{device}").mkdir()
        own = {"SUPERLINK": f"{SERVER}:{PORT}", "CLIENT_ID": str(device), "ROOT_CERTIFICATES": str(authority)}
        own |= {"KEY": str(folder / f"device-{device}"), "STATE_DIR": str(folder / f"state-{device}")}
        inside = ["nsenter", "--net", "--target", str(holder.pid), str(DEPLOY / "device.sh")]
        started.append(start(inside, folder, f"device-{device}", **own))
    settings_of_run = f"num-clients={devices} run-dir='{folder / 'runs'}' {config}"
    run = [str(BIN / "flwr"), "run", str(DEPLOY.parent), "lab", "--stream", "--run-config", settings_of_run]
    return [*started, start(run, folder, "run")]


def main() -> None:
    """Print how long it takes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=5)
    parser.add_argument("--delay", type=float, default=0.05, help="seconds each way")
    parser.add_argument("--rate", type=float, default=1e6, help="bits a second each way")
    parser.add_argument("--loss", type=float, default=0.02, help="share of packets")
    parser.add_argument("--run-config", default="num-rounds=3 model='logistic'")
    arguments = parser.parse_args()
    if os.environ.get("SLOW_LINKS") != "1":  # this process again, in a namespace of its own
        again = ["unshare", "--net", sys.executable, *sys.argv]
        os.execvpe(again[0], again, os.environ | {"SLOW_LINKS": "1"})
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # cleans up
    quality = arguments.delay, arguments.rate, arguments.loss
    sh(f"ip link set lo up; ip addr add {SERVER}/32 dev lo")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder, begin = Path(name), time.monotonic()
        processes = federation(folder, arguments.devices, arguments.run_config, quality)
        try:
            watch(folder, processes[-1], begin)
        finally:
            for process in reversed(processes):
                process.terminate()
            for process in processes:
                process.wait()
            end_processes(folder / "flower")  # which they have started


def watch(folder: Path, run: subprocess.Popen[bytes], begin: float) -> None:
    """Print the rounds as they end."""
    print(f"{time.monotonic() - begin:.0f} s: `flwr run`", flush=True)
    seen = 0
    while True:
        ended = run.poll() is not None
        for file in folder.glob("runs/*/metrics.jsonl"):
            for record in map(json.loads, file.read_text().splitlines()[seen:]):
                seen += 1
                told = {k: record.get(k) for k in ("round", "active", "failed", "bytes_down", "bytes_up")}
                train = record["seconds"].get("train", 0.0)
                print(f"{time.monotonic() - begin:.0f} s: {told} train {train:.1f} s", flush=True)
        if ended:
            break
        time.sleep(0.2)
    print((folder / "run.log").read_text()[-1500:])


if __name__ == "__main__":
    main()
