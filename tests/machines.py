"""Machines made of namespaces: each has a network, a name, users and files of its own, which end with it.

They are joined by a bridge, and reached by a real `sshd`. Only `systemctl` is ours: it starts the processes
of units as their user, and notes each call. Packages are those of the tests, so that nothing is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import venv
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

from waiting import wait_until

NETWORK = "192.168.1"
OVERLAID = ("etc", "opt", "var", "home", "root", "usr/local")
# In namespaces of its own, which end with the process that started them, and with them all that runs there.
ALONE = ["setpriv", "--pdeathsig=KILL", "unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
PROGRAMS = ("setpriv", "unshare", "nsenter", "ip", "ssh", "sshd", "rsync", "sudo", "nft", "openssl")
SYSTEMCTL = Path(__file__).with_name("systemctl.py")

MOUNTS = """
set -e
mount --make-rprivate /
for d in {overlaid}; do
    mkdir -p "{files}/$d/changed" "{files}/$d/work"
    lower=/$d
    [ $d != opt ] || lower={seed}:/opt
    mount -t overlay overlay -o "lowerdir=$lower,upperdir={files}/$d/changed,workdir={files}/$d/work" /$d
done
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/sshd /opt/packages
mount --bind {packages} /opt/packages
hostname {name}
ip link set lo up
touch {files}/ready
exec sleep infinity
"""
SETUP = """
set -e
useradd --create-home --shell /bin/bash --password '*' {user}
echo '{user} ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/{user}
install -d -m 700 -o {user} -g {user} /home/{user}/.ssh
printf '#!/bin/sh\\n' | tee /usr/local/bin/nano /usr/local/bin/dpkg > /dev/null
install -m 755 {systemctl} /usr/local/bin/systemctl
chmod 755 /usr/local/bin/nano /usr/local/bin/dpkg
printf '[global]\nno-index = true\n' > /etc/pip.conf
rm -f /etc/ssh/ssh_host_*
ssh-keygen -q -A
/usr/sbin/sshd -o UsePAM=no -o PasswordAuthentication=no
"""


def why_not() -> str:
    """Return why there can be no such machines here; empty: there can."""
    if os.name != "posix" or os.geteuid():
        return "needs root"
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
    if missing := [program for program in PROGRAMS if not shutil.which(program, path=path)]:
        return f"needs {', '.join(missing)}"
    probe = "ip link add probe type bridge && mount --make-rprivate / && mount -t tmpfs tmpfs /run"
    done = subprocess.run(["unshare", "--net", "--mount", "sh", "-c", probe], capture_output=True)
    return "" if done.returncode == 0 else f"the kernel refuses it: {done.stderr.decode().strip()}"


class Machine:
    """A machine at `address`, with a user who may `sudo`."""

    def __init__(self, name: str, address: str, user: str, folder: Path, seed: Path) -> None:
        self.name, self.address, self.user = name, address, user
        self.files = folder / name
        self.files.mkdir()
        packages = sysconfig.get_path("purelib")
        mounts = MOUNTS.format(
            overlaid=" ".join(OVERLAID), files=self.files, seed=seed, packages=packages, name=name
        )
        self.holder = subprocess.Popen([*ALONE, "--mount", "--uts", "sh", "-c", mounts])
        wait_until((self.files / "ready").exists, self.holder)
        self.first = first_process(self.holder)
        self.root(SETUP.format(user=user, systemctl=SYSTEMCTL))

    def command(self, *command: str) -> list[str]:
        """Return a command that runs another one here, as root."""
        inside = ["--net", "--mount", "--uts", "--pid", f"--target={self.first}", "--wd=/"]
        return ["nsenter", *inside, *command]

    def root(self, script: str) -> str:
        """Run a script as root; return what it prints."""
        return call(self.command("sh", "-c", script))

    def script(self, text: str, folder: str = "~") -> str:
        """Run lines of bash as the user, as if typed after a login; return what they print."""
        lines = f"set -e; cd {folder}\n{text}"
        login = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--init-groups"]
        env = ["env", "-i", f"HOME=/home/{self.user}", f"USER={self.user}", "LANG=C.UTF-8"]
        path = "PATH=/opt/fedtide/.venv/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin"
        return call(self.command(*login, *env, path, "bash", "-c", lines))

    def calls(self) -> list[str]:
        """Return the calls of `systemctl` so far."""
        return self.root("cat /run/systemctl.log 2> /dev/null || true").splitlines()

    def log(self, unit: str) -> str:
        """Return what a unit has printed."""
        return self.root(f"cat /run/{unit}.log 2> /dev/null || true")


class Lab:
    """A server and boards in one network; `with` ends all that runs on them."""

    def __init__(self, folder: Path, boards: int) -> None:
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        seed = folder / "seed"
        seeded_environment(seed / "fedtide" / ".venv")
        self.switch = subprocess.Popen([*ALONE, "sleep", "infinity"])
        self.server = Machine("server", f"{NETWORK}.10", "op", folder, seed)
        self.boards = [Machine(f"pi-{k}", f"{NETWORK}.{20 + k}", "pi", folder, seed) for k in range(boards)]
        self._in_switch("ip link add lab type bridge; ip link set lab up")
        for machine in self.machines:
            self._connect(machine)
        made = "ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519; cat ~/.ssh/id_ed25519.pub"
        key = self.server.script(made)
        self.server.script("echo 'StrictHostKeyChecking accept-new' > ~/.ssh/config")
        for board in self.boards:
            board.script(f"echo '{key.strip()}' > ~/.ssh/authorized_keys; chmod 600 ~/.ssh/authorized_keys")

    @property
    def machines(self) -> list[Machine]:
        """All of them."""
        return [self.server, *self.boards]

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *error: object) -> None:
        for holder in (self.switch, *(machine.holder for machine in self.machines)):
            holder.kill()  # and with it all that runs there
            holder.wait()

    def _in_switch(self, script: str) -> None:
        call(["nsenter", "--net", f"--target={first_process(self.switch)}", "sh", "-ec", script])

    def _connect(self, machine: Machine) -> None:
        port = machine.name
        self._in_switch(
            f"ip link add {port} type veth peer name eth0 netns {machine.first};"
            f"ip link set {port} master lab up"
        )
        hosts = "\n".join(f"{other.address} {other.name}" for other in self.machines)
        machine.root(
            f"ip addr add {machine.address}/24 dev eth0; ip link set eth0 up; echo '{hosts}' >> /etc/hosts"
        )


def seeded_environment(folder: Path) -> None:
    """Make a virtual environment that has what the tests' one has."""
    venv.create(folder, with_pip=True, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "tests.pth").write_text("/opt/packages\n")
    for old in packages.glob("setuptools*"):  # would come first
        shutil.rmtree(old)
    for program in distribution("flwr").entry_points.select(group="console_scripts"):
        target, (module, function) = folder / "bin" / program.name, program.value.split(":")
        lines = ("import sys", f"from {module} import {function}", f"sys.exit({function}())", "")
        target.write_text("\n".join(("#!/opt/fedtide/.venv/bin/python", *lines)))
        target.chmod(0o755)


def call(command: Sequence[str]) -> str:
    """Call a command; return what it prints, and show that if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    text = done.stdout.decode(errors="replace")
    assert done.returncode == 0, f"{command[-1]}\n{text}"
    return text


def first_process(holder: subprocess.Popen[bytes]) -> int:
    """Return the number of the first process of a namespace, the only one that its holder has started."""
    children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
    return int(wait_until(children.read_text, holder))
