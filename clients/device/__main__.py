"""Run a device: `fedtide-device --superlink 192.168.1.10:8000 --client-id 3`.

It starts Flower's SuperNode, for the client that the run's app defines. SIGTERM and Ctrl-C end it in order:
a task at work is cut short after its current local step, its reply is sent and says that the device departs
(with `--on-stop pause` it does not), and no process is left.
`fedtide-leave` lets a device depart that keeps running.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from clients.device.flower_internals import FlowerChangedError
from clients.device.supervisor import DEPARTING, STOP, Launch, supervise
from fedtide.base.errors import why
from fedtide.base.wording import plain

PROG = "python -m clients.device" if __name__ == "__main__" else "fedtide-device"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog=PROG, description="Run a device of a federation.", argument_default=""
    )
    add = parser.add_argument
    add("--superlink", required=True, metavar="HOST:PORT", help="address of the SuperLink")
    add("--client-id", required=True, type=int, metavar="K", help="which client it is, 0..N-1")
    add("--state-dir", metavar="DIR", help="where the client's memory outlives a restart")
    text = "the device's own examples: an .npz file, a CSV file, or a folder of classes"
    add("--data", metavar="PATH", help=text)
    text = "column of a CSV file to predict (that of the run's table, or the last)"
    add("--target", metavar="COLUMN", help=text)
    text = "names of all classes, in their order (those of the run's table)"
    add("--classes", metavar="A+B", help=text)
    add("--root-certificates", metavar="CA.crt", help="certificate to verify the SuperLink with")
    add("--key", metavar="PRIVATE_KEY", help="the device's registered key")
    text = "log, or folder of logs, of when the device is online and how fast it works"
    add("--record-trace", metavar="FILE|DIR", help=text)
    add("--port", type=int, default=0, help="local port for Flower (a free one)")
    add("--device", metavar="NAME", help="where PyTorch trains: cpu, cuda or cuda:1 (cpu)")
    add("--numpy", action="store_true", help="train without PyTorch, even if it is installed")
    text = "say with each reply how the board is: temperature, free disk and memory, load, battery, energy"
    add("--report", action="store_true", help=text)
    text = "keep a client's imports in memory instead of repeating them for every message"
    add("--resident", action="store_true", help=text)
    text = "between two polls of the SuperLink (1)"
    add("--poll", type=float, default=1.0, metavar="SECONDS", help=text)
    text = "whether a reply after SIGTERM says that the device leaves for good (depart)"
    add("--on-stop", choices=("depart", "pause"), default="depart", help=text)
    add("--grace", type=float, default=20.0, metavar="SECONDS", help="that this reply may take (20)")
    return parser.parse_args(argv)


def check(options: argparse.Namespace) -> None:
    """Raise ValueError if something is missing on this device, or a value is impossible."""
    if not hasattr(signal, "SIGCHLD"):
        raise ValueError("it needs Linux, macOS or another Unix; elsewhere, start flower-supernode instead")
    for package in ("flwr", "numpy", "safetensors"):
        if find_spec(package) is None:
            raise ValueError(f"{package} is not installed for {sys.executable}; pip install {package}")
    host, _, port = options.superlink.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"--superlink is {options.superlink!r}; give HOST:PORT, such as 192.168.1.10:8000")
    if options.client_id < 0:
        raise ValueError(f"--client-id is {options.client_id}; give a whole number, 0 or more")
    if not 0 <= options.port < 65536:
        raise ValueError(f"--port is {options.port}; give 1 to 65535, or leave it out")
    for name in ("poll", "grace"):
        if not 0.05 <= getattr(options, name) <= 3600:
            raise ValueError(f"--{name} is {getattr(options, name):g}; give 0.05 to 3600 seconds")
    if options.device not in ("", "cpu"):
        _check_device(options.device, options.numpy)
    if options.key and not options.root_certificates:
        raise ValueError("--key needs --root-certificates: Flower takes keys over encrypted connections only")
    checks: dict[str, Callable[[str], None]] = {
        "root_certificates": _check_certificates,
        "key": _check_key,
        "state_dir": partial(_check_writable, is_folder=True),
        "record_trace": _check_writable,
    }
    for name, check_path in checks.items():
        try:
            if path := getattr(options, name):
                check_path(path)
        except (OSError, ValueError) as error:
            raise ValueError(f"--{name.replace('_', '-')} {path}: {why(error)}") from None
    if not options.data and (options.target or options.classes):
        raise ValueError("--target and --classes describe the examples that --data names; give it, too")


def _check_device(name: str, numpy: bool) -> None:
    """Raise ValueError unless PyTorch computes there; this process does without its 200 MB."""
    if numpy or find_spec("torch") is None:
        raise ValueError(f"--device {name}: NumPy trains on the CPU; it needs PyTorch, without --numpy")
    program = "import sys, torch; torch.ones(1, device=sys.argv[1]).add(1).item()"
    done = subprocess.run([sys.executable, "-c", program, name], capture_output=True, text=True, check=False)
    if done.returncode:
        why = next(iter(done.stderr.strip().splitlines()[-1:]), f"exit code {done.returncode}")
        raise ValueError(f"--device {name}: PyTorch cannot use it: {plain(why)}")


def _check_certificates(path: str) -> None:
    try:
        ssl.create_default_context(cafile=path)
    except ssl.SSLError:
        raise ValueError("it is not a certificate in PEM format (-----BEGIN ...)") from None


def _check_key(path: str) -> None:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    content = Path(path).read_bytes()
    try:
        usable = isinstance(load_ssh_private_key(content, None), EllipticCurvePrivateKey)
    except Exception:  # whatever is wrong with it
        usable = False
    if not usable:
        raise ValueError("Flower cannot use it; make one with ssh-keygen -t ecdsa -b 384 -N '' -f FILE")


def _check_writable(path: str, is_folder: bool = False) -> None:
    """Make a folder, and raise ValueError unless one can write where the path says."""
    try:
        if is_folder:
            Path(path).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path if Path(path).is_dir() else Path(path).parent):
            pass
    except OSError as error:
        raise ValueError(f"{why(error)}; it must be writable") from None


def own_data(options: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Read the device's examples once; return the node config that says where the clients find them.

    Where reading is slow, there is a copy that is read fast, as clients do for every message. What the values
    of a CSV file mean, the run's task says: here only its rows are counted.
    """
    if not options.data:
        return {}
    from clients.device.local_data import DataSpec, count_rows, read  # once `check` has found NumPy

    path = str(Path(options.data).absolute())
    target = Path(options.state_dir).absolute() if options.state_dir else folder
    copy = "" if path.lower().endswith(".npz") else str(target / f"data-client-{options.client_id}.npz")
    spec = DataSpec(path, options.target, options.classes, copy)
    if path.lower().endswith(".csv"):
        print(f"{PROG}: {count_rows(path):,} rows in {path}", file=sys.stderr)
    else:
        data = read(spec)
        if copy and not Path(copy).exists():
            raise ValueError(f"{copy} cannot be written; {data.x.nbytes / 2**20:,.0f} MiB are needed")
        shape = "x".join(map(str, data.x.shape[1:]))
        print(f"{PROG}: {len(data.y):,} examples of shape {shape} in {path}", file=sys.stderr)
    told = {"data": path, "target": spec.target, "classes": spec.classes, "fast-copy": copy}
    return {name: value for name, value in told.items() if value}


def launch_of(options: argparse.Namespace, folder: Path, numpy: bool) -> Launch:
    """Turn the command line into what is started."""
    config: dict[str, object] = {"client-id": options.client_id, **own_data(options, folder)}
    for name in ("state_dir", "record_trace"):
        if path := getattr(options, name):
            config[name.replace("_", "-")] = str(Path(path).absolute())
    if options.device:
        config["device"] = options.device
    config |= {name: True for name, wanted in (("numpy", numpy), ("report", options.report)) if wanted}
    config |= {"stop-file": str(folder / STOP), "departing-file": str(folder / DEPARTING)}
    if bad := next((v for v in config.values() if isinstance(v, str) and set(v) & set("\"'\\\n")), None):
        raise ValueError(f"{bad!r}: quotation marks and backslashes cannot be passed to Flower; rename it")
    node_config = " ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in config.items())
    port = options.port or free_port()
    arguments = ["--superlink", options.superlink, "--port", str(port), "--node-config", node_config]
    if options.root_certificates:
        arguments += ["--root-certificates", str(Path(options.root_certificates).absolute())]
    else:
        arguments.append("--insecure")
    if options.key:
        arguments += ["--auth-supernode-private-key", str(Path(options.key).absolute())]
    recorder = []
    if options.record_trace:
        file = str(config["record-trace"])
        recorder = ["--client", str(options.client_id), "--file", file, "--server", options.superlink]
    client = "clients.numpy_client" if numpy else "clients.torch_client"
    imports = (client,) if options.resident else ()
    return Launch(arguments, recorder, imports, options.poll, options.on_stop == "depart", options.grace)


def free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def open_streams() -> None:
    """Have what was closed of standard input, output and error lead nowhere, also in programs started here.

    Flower's would fail, or crash as they end, where a socket of theirs got such a number.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a device; return the exit code: 0 after SIGTERM or Ctrl-C, 2 for a bad command line."""
    open_streams()
    options = parse(argv)
    try:
        check(options)
    except ValueError as error:
        return _refused(error)
    numpy = options.numpy or find_spec("torch") is None
    if numpy and not options.numpy:
        print(f"{PROG}: PyTorch is not installed: training with NumPy", file=sys.stderr)
    if not options.root_certificates:
        text = (
            "insecure: no --root-certificates, so nothing is encrypted, and anyone can pose as the SuperLink"
        )
        print(f"{PROG}: {text}", file=sys.stderr)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)  # which removes the folder
    with tempfile.TemporaryDirectory(prefix="fedtide-device-") as name:
        try:
            launch = launch_of(options, Path(name), numpy)
        except ValueError as error:
            return _refused(error)
        sys.stderr.flush()
        try:
            return supervise(launch, Path(name))
        except FlowerChangedError as error:
            return _refused(error)


def _refused(error: Exception) -> int:
    print(f"{PROG}: error: {error}", file=sys.stderr)
    return 2


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
