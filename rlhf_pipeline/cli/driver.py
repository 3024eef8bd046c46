"""Reads Dagster's storage in a process of its own (`python -m driver TASK`)."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_pipeline import protocols
from rlhf_pipeline.cli.context import checkout
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.store import database_dump

# enough to tell what ran and what it made
DAGSTER_FILES = ("history/runs.db", "history/runs/index.db", "schedules/schedules.db")


def read_facts(
    task: str,
    environ: Mapping[str, str],
    progress: protocols.Progress = protocols.ignore_progress,
) -> list[dict[str, Any]]:
    """Run a task that prints lines of JSON: what it reports of Dagster, which this library does
    not know. Raises StoreError with the task's error.
    """
    facts = []
    Path(environ["DAGSTER_HOME"]).mkdir(parents=True, exist_ok=True)
    with (
        # not a pipe, which would fill while the other one is read
        tempfile.TemporaryFile("w+") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", "driver", task],
            cwd=checkout(),
            env=os.environ | environ,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None  # it is a pipe
        for line in process.stdout:
            fact = json.loads(line)
            if "progress" in fact:
                progress(*fact["progress"])
            else:
                facts.append(fact)
        process.wait()
        stderr.seek(0)
        last_lines = stderr.read().strip()
    error = next((fact["error"] for fact in facts if "error" in fact), None)
    if error is not None or process.returncode:
        last = last_lines.splitlines()[-1] if last_lines else "its process was killed"
        raise StoreError(f"Dagster's storage: {error or last}")
    return facts


def read_dagster_state(environ: Mapping[str, str]) -> dict[str, Any]:
    """Runs, materialised days and daemon heartbeats of the instance that `environ` names."""
    return next((f["state"] for f in read_facts("state", environ) if "state" in f), {})


def read_copied_dagster_state(settings: Settings) -> dict[str, Any]:
    """`read_dagster_state` from copies of the SQLite files, because Dagster creates and migrates
    what it opens. Empty where nothing ran yet.
    """
    source = settings.home / "dagster"
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        if settings.dagster_storage is None:
            present = [name for name in DAGSTER_FILES if (source / name).is_file()]
            if not present:
                return {}
            for name in present:
                database_dump.copy_verified_sqlite(source / name, home / name)
        (home / "dagster.yaml").write_bytes((source / "dagster.yaml").read_bytes())
        return read_dagster_state({**settings.dagster_environ, "DAGSTER_HOME": folder})


def has_damaged_files(home: Path) -> bool:
    """Whether one of Dagster's SQLite files in a home cannot be read."""
    files = [home / "dagster" / name for name in DAGSTER_FILES]
    return any(database_dump.is_damaged(file) for file in files if file.is_file())
