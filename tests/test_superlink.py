"""The guard before Flower's SuperLink: who reaches what, and how much a request may bring."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from flower import ROOT, free_ports, installation
from waiting import wait_until

PROGRAM = [sys.executable, str(ROOT / "deploy" / "superlink.py"), "--insecure", "--host", "127.0.0.1"]
BOARD, ADMIN = "127.0.0.3", "127.0.0.2"
CONTROL, FLEET = "/v1/control/list-nodes", "/v1/fleet/activate-node"
KIND = {"content-type": "application/protobuf"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A SuperLink for administrators at 127.0.0.1 and 127.0.0.2, and for a megabyte a request."""
    folder, (port,) = tmp_path_factory.mktemp("superlink"), free_ports(1)
    command = [*PROGRAM, "--port", str(port), "--isolation", "process"]
    with installation(folder / "flower") as env, (folder / "log").open("wb") as log:
        env |= {"ADMINS": f"127.0.0.1 {ADMIN}/32", "MOST_MB": "1"}
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: status(url, ADMIN, CONTROL), process)
        yield url
        process.terminate()
        process.wait()


def status(url: str, source: str, path: str, content: bytes | Iterator[bytes] = b"") -> int:
    """The status of the answer to a request from an address; 0: nobody listens."""
    with httpx.Client(transport=httpx.HTTPTransport(local_address=source)) as client:
        try:
            return client.post(url + path, content=content, headers=KIND, timeout=60).status_code
        except httpx.ConnectError:
            return 0


def chunks(count: int) -> Iterator[bytes]:
    """A body whose length no header names."""
    yield from (bytes(100_000) for _ in range(count))


def test_who_reaches_what(address: str) -> None:
    for path in (CONTROL, "/v1/runtime/pull-messages", "/docs", "/"):
        assert status(address, BOARD, path) == 403
        assert status(address, ADMIN, path) != 403
    assert status(address, BOARD, FLEET) not in (0, 403, 413)


def test_no_request_brings_more(address: str) -> None:
    for body in (bytes(1_000_001), chunks(11)):
        assert status(address, BOARD, FLEET, body) == 413
    for body in (bytes(999_999), chunks(9)):
        assert status(address, BOARD, FLEET, body) not in (0, 413)


def test_flower_has_no_login_of_users(tmp_path: Path) -> None:
    """Otherwise docs/deploy.md has to say how it is used."""
    env = {**os.environ, "FLWR_OIDC_ENABLED": "1"}
    done = subprocess.run(PROGRAM, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "OIDC account authentication is unavailable in this Flower distribution" in done.stderr


@pytest.mark.parametrize("limits", [{"ADMINS": "the-office"}, {"MOST_MB": "many"}])
def test_limits_that_cannot_be_read(limits: dict[str, str], tmp_path: Path) -> None:
    env = {**os.environ, **limits}
    done = subprocess.run(PROGRAM, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("deploy/superlink.py: ADMINS or MOST_MB: ")
