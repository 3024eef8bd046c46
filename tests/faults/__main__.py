"""Plants each fault of this folder in a copy of the checkout and expects a test to fail: `make
faults`.

A fault is a patch whose first line says what is wrong; `Caught by:` names the tests that should
notice. It is caught if one of these fails with the patch and passes without it. A patch that no
longer applies has to be rewritten for the same fault.

    python -m tests.faults [NAME ...]
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
N_COPIES = 2  # as many faults at a time
LIMIT_S = 900  # of one suite
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    """One patch, what it breaks, and the tests that should notice."""

    patch: Path
    title: str
    suite: tuple[str, ...]

    @classmethod
    def read(cls, patch: Path) -> "Fault":
        title, caught_by, *_ = patch.read_text(encoding="utf-8").splitlines()
        label, _, paths = caught_by.partition(": ")
        if label != "Caught by" or not paths:
            raise SystemExit(f"{patch.name}: the second line is {caught_by!r}, not 'Caught by: …'")
        return cls(patch, title, tuple(paths.split()))


def copy_checkout(target: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():  # the application's folders are
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


@contextmanager
def planted(fault: Fault, copy: Path) -> Iterator[bool]:
    """The fault in the copy while the block runs; False if the patch does not apply."""
    apply = ["git", "apply", "-C1", "--recount", str(fault.patch)]
    is_applied = subprocess.run(apply, cwd=copy, capture_output=True, check=False).returncode == 0
    try:
        yield is_applied
    finally:
        if is_applied:
            subprocess.run([*apply, "--reverse"], cwd=copy, capture_output=True, check=True)


def run_tests(copy: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    flags = ["-x", "-q", "-rfE", "--tb=no", "--no-header", "-p", "no:randomly"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *flags, *tests],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


def judge(fault: Fault, copy: Path) -> str:
    """Why the fault was not caught; empty if it was."""
    missing = [path for path in fault.suite if not (copy / path).exists()]
    if missing:
        return f"there is no {' or '.join(missing)}: name the tests that should notice"
    with planted(fault, copy) as is_applied:
        if not is_applied:
            return "the patch no longer applies: rewrite it for the same fault"
        ran = run_tests(copy, fault.suite)
    failed = FAILED.search(ran.stdout)
    if failed is None:
        return f"no test failed (exit {ran.returncode}): {ran.stdout[-300:].strip()}"
    without = run_tests(copy, [failed[1]])
    if without.returncode:
        return f"{failed[1]} fails without the fault too"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="of patches; default all")
    names = set(parser.parse_args().names)
    faults = [Fault.read(patch) for patch in sorted(FOLDER.glob("*.patch"))]
    if unknown := names - {fault.patch.stem for fault in faults}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    chosen = [fault for fault in faults if not names or fault.patch.stem in names]
    copies: SimpleQueue[Path] = SimpleQueue()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for n in range(N_COPIES):
            copy_checkout(Path(folder, str(n)))
            copies.put(Path(folder, str(n)))

        def judge_in_a_copy(fault: Fault) -> str:
            copy = copies.get()
            try:
                why = judge(fault, copy)
            finally:
                copies.put(copy)
            verdict = "MISSED" if why else "caught"
            print(f"{verdict}  {fault.patch.stem}: {fault.title} {why}".rstrip(), flush=True)
            return why

        with ThreadPoolExecutor(N_COPIES) as pool:
            missed = sum(map(bool, pool.map(judge_in_a_copy, chosen)))
    took_s = time.monotonic() - began
    print(f"{len(chosen) - missed} of {len(chosen)} faults caught in {took_s:.0f} s")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
