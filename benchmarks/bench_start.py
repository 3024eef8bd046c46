"""How long `rlhf` takes to start: help, commands that only touch the store, and the web app.

    python benchmarks/bench_start.py [--runs 5]

Each command runs in a process of its own on a new home. A bare `python -c pass` of the same
environment is printed beside them. Limits hold on an otherwise idle machine.
"""

import argparse
import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.measurement import Limits  # noqa: E402

RLHF = [sys.executable, "-c", "from rlhf_pipeline.cli import main; main()"]
COMMANDS = {
    "--help": 0.4,
    "users list": 0.8,
    "changes list": 0.8,
    "audit verify": 0.8,
    "vote --help": 0.8,
}


def time_command(words: list[str], environ: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(words, env=environ, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def time_server(environ: dict[str, str]) -> float:
    """Seconds until `rlhf serve` answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.perf_counter()
    server = subprocess.Popen(
        [*RLHF, "serve", "--port", str(port)], env=environ, stdout=subprocess.DEVNULL
    )
    try:
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/healthz", timeout=5)
                return time.perf_counter() - began
            time.sleep(0.02)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    n_runs = parser.parse_args().runs
    limits = Limits()
    with tempfile.TemporaryDirectory() as folder:
        environ = os.environ | {"RLHF_HOME": f"{folder}/home", "PYTHONPATH": str(ROOT)}
        subprocess.run([*RLHF, "init"], env=environ, check=True, stdout=subprocess.DEVNULL)
        bare = [time_command([sys.executable, "-c", "pass"], environ) for _ in range(n_runs)]
        print(f"python -c pass: {statistics.median(bare):.2f} s, median of {n_runs}\n")
        for words, limit in COMMANDS.items():
            took = statistics.median(
                time_command([*RLHF, *words.split()], environ) for _ in range(n_runs)
            )
            limits.check(took <= limit, f"rlhf {words}: {took:.2f} s, limit {limit} s")
        took = statistics.median(time_server(environ) for _ in range(n_runs))
        limits.check(took <= 2, f"rlhf serve answers after {took:.2f} s, limit 2 s")
    return limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
