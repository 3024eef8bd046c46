"""Dagster's side of `rlhf storage`, asked in a process of its own: this library does not know
Dagster.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rlhf_pipeline import protocols
from rlhf_pipeline.cli.context import checkout
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.store import database_dump

# enough to say what ran and what it made
DAGSTER_FILES = ("history/runs.db", "history/runs/index.db", "schedules/schedules.db")


def read_dagster_state(settings: Settings) -> dict[str, Any]:
    facts = run_dagster_task("state", settings.dagster_environ)
    return next((fact["state"] for fact in facts if "state" in fact), {})


def has_damaged_files(home: Path) -> bool:
    """Whether one of Dagster's SQLite files in a home cannot be read."""
    files = [home / "dagster" / name for name in DAGSTER_FILES]
    return any(database_dump.is_damaged(file) for file in files if file.is_file())


def read_copied_dagster_state(settings: Settings) -> dict[str, Any]:
    """`read_dagster_state` from copies of the SQLite files: an instance makes and migrates what it
    opens. Empty where nothing ran yet.
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
        facts = run_dagster_task("state", {**settings.dagster_environ, "DAGSTER_HOME": folder})
    return next((fact["state"] for fact in facts if "state" in fact), {})


def run_dagster_task(
    task: str, environ: dict[str, str], progress: protocols.Progress = protocols.ignore_progress
) -> list[dict[str, Any]]:
    """What the application says of Dagster, which this library does not know: lines of JSON from a
    process of its own.
    """
    said = []
    Path(environ["DAGSTER_HOME"]).mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "storage", task]
    with (
        # not a pipe, which would fill while the other one is read
        tempfile.TemporaryFile("w+") as complaints,
        subprocess.Popen(
            command,
            cwd=checkout(),
            env=os.environ | environ,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None  # it is a pipe
        for line in process.stdout:
            fact = json.loads(line)
            if "progress" in fact:
                progress(*fact["progress"])
            else:
                said.append(fact)
        process.wait()
        complaints.seek(0)
        complaint = complaints.read().strip()
    error = next((fact["error"] for fact in said if "error" in fact), None)
    if error is not None or process.returncode:
        last = complaint.splitlines()[-1] if complaint else "its process was killed"
        raise StoreError(f"Dagster's storage: {error or last}")
    return said
