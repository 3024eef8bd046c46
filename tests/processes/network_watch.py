"""What a process tries to reach outside this host: written down and refused, in it and in every
process it starts.
"""

import os
import shutil
import subprocess
from pathlib import Path

from rlhf_pipeline.core.config import TELEMETRY_OFF

ROOT = Path(__file__).resolve().parents[2]
# Loaded by every Python process that finds it on PYTHONPATH: what leads outside is written down and
# refused.
WATCH = """
import ipaddress, os, socket, sys

LOG = os.environ["NETWORK_LOG"]


def is_inside(host):
    if host in (None, "", b"", "localhost", b"localhost"):
        return True
    try:
        return ipaddress.ip_address(
            host.decode() if isinstance(host, bytes) else host.partition("%")[0]
        ).is_loopback
    except ValueError:
        return False


def watch(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        # Only addresses of the internet are (host, port, …); a Unix socket has a path, netlink has
        # numbers.
        address = arguments[1]
        if not isinstance(address, tuple) or not isinstance(address[0], (str, bytes)):
            return
        host = address[0]
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        host = arguments[0]
    else:
        return
    if not is_inside(host):
        with open(LOG, "a") as log:
            log.write(f"{event} {host} by {sys.argv[:3]}\\n")
        raise PermissionError(f"{event} to {host}: the network is cut")


sys.addaudithook(watch)
"""


def watch_network(environ: dict[str, str], folder: Path) -> dict[str, str]:
    """`environ` for processes that are watched; `attempts` lists what they tried. Without what
    tells libraries not to report home: the project must see to it itself.
    """
    (folder / "sitecustomize.py").write_text(WATCH, encoding="utf-8")
    (folder / "network.log").touch()
    names = {*TELEMETRY_OFF, "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}
    return {name: value for name, value in environ.items() if name not in names} | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "NETWORK_LOG": str(folder / "network.log"),
    }


def attempts(folder: Path) -> list[str]:
    """Every attempt, as `event host by program`."""
    return (folder / "network.log").read_text(encoding="utf-8").splitlines()


def cut() -> list[str]:
    """A command prefix that takes the network away for real, where the system lets us."""
    unshare = shutil.which("unshare")
    possible = (
        unshare
        and subprocess.run([unshare, "-rn", "true"], capture_output=True, check=False).returncode
        == 0
    )
    return [str(unshare), "-rn"] if possible else []
