"""Reads, writes and lists whole files below a folder or an fsspec URL.

Server, credentials and region come from the drivers' own configuration (`AWS_ENDPOINT_URL`,
`AWS_ACCESS_KEY_ID`, `AWS_PROFILE`, `FSSPEC_S3_…`), so that no secret passes through a setting, a
log or a page.
"""

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from upath import UPath

from rlhf_pipeline.core.errors import ArtefactError, ConfigurationError
from rlhf_pipeline.core.files import write_atomically

# Stores whose put is atomic: readers see the old file until the new one is complete. Elsewhere a
# temporary file is moved into place.
PUT_IS_WHOLE = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss"}
AT_ONCE = 16  # concurrent reads; a store answers each in tens of milliseconds

NO_BUCKET = {"NoSuchBucket", "InvalidBucketName"}


def open_path(url: str | Path) -> UPath:
    """`url` as a path without a listings cache, so that files written by other processes are seen.

    Raises ConfigurationError if the URL has an unknown scheme, no bucket, or a password.
    """
    if "://" not in str(url):
        return UPath(url)
    if urlsplit(str(url)).password:
        # The message must not repeat the password: it goes to logs.
        raise ConfigurationError(
            "The frames URL contains a password, which Dagster would show. Remove it and set "
            "credentials in the driver's environment variables."
        )
    try:
        path = UPath(url)
        return path if is_local(path) else UPath(url, use_listings_cache=False)
    except ValueError as cause:
        raise ConfigurationError(
            f"{url} cannot be used: {cause}. Give a folder, or a URL such as s3://bucket/folder."
        ) from cause


def is_local(path: UPath) -> bool:
    return path.protocol in ("", "file")


def put(path: UPath, content: bytes) -> None:
    """Write `content` to `path` atomically: readers see the old or the new file, never a part.
    Raises ArtefactError.
    """
    if is_local(path):
        write_atomically(Path(path.path), content)
        return
    with _translate_errors("write", path):
        if path.protocol in PUT_IS_WHOLE:
            path.fs.pipe_file(path.path, content)
            return
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.fs.pipe_file(temporary.path, content)
            path.fs.mv(temporary.path, path.path)
        except BaseException:
            with contextlib.suppress(Exception):
                temporary.unlink()
            raise


def get(path: UPath) -> bytes | None:
    """The file, read in one request so that two writes cannot mix; None if it does not exist.
    Raises ArtefactError.
    """
    with _translate_errors("read", path):
        try:
            return (
                Path(path.path).read_bytes()
                if is_local(path)
                else bytes(path.fs.cat_file(path.path))
            )
        except FileNotFoundError as cause:
            if _error_code(cause) in NO_BUCKET:
                raise
            return None


def get_many(paths: Sequence[UPath]) -> list[bytes | None]:
    """The content of each file, or None, in the order of `paths`."""
    if len(paths) < 2 or is_local(paths[0]):
        return [get(path) for path in paths]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(get, paths))


def list_written(folder: UPath) -> dict[str, datetime]:
    """When each file in `folder` was last written; empty if it does not exist. Raises
    ArtefactError.
    """
    with _translate_errors("list", folder):
        try:
            entries = folder.fs.ls(folder.path, detail=True)
        except FileNotFoundError:
            return {}
    return {
        entry["name"].rpartition("/")[2]: _read_moment(entry)
        for entry in entries
        if entry["type"] == "file"
    }


def _read_moment(entry: Mapping[str, Any]) -> datetime:
    """Every driver of fsspec names the time of a file in its own way."""
    at = next(entry[key] for key in ("mtime", "LastModified", "created") if key in entry)
    moment = at if isinstance(at, datetime) else datetime.fromtimestamp(at, UTC)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def list_names(folder: UPath) -> list[str]:
    """Sorted names of the files in `folder`; empty if it does not exist. Raises ArtefactError."""
    with _translate_errors("list", folder):
        try:
            return sorted(
                entry.rstrip("/").rpartition("/")[2]
                for entry in folder.fs.ls(folder.path, detail=False)
            )
        except FileNotFoundError as cause:
            if _error_code(cause) in NO_BUCKET:
                raise
            return []


@contextlib.contextmanager
def _translate_errors(verb: str, path: UPath) -> Iterator[None]:
    """Turn any driver error into an ArtefactError that names `path`, cause and cure. Drivers share
    no base class of errors.
    """
    try:
        yield
    except (ArtefactError, MemoryError):
        raise
    except Exception as cause:
        reason = " ".join(str(cause).split()) or type(cause).__name__
        assurance = "; the previous file is untouched" if verb == "write" else ""
        raise ArtefactError(
            f"Cannot {verb} {path}: {reason}. {_cure(path, cause)}{assurance}."
        ) from cause


def _cure(path: UPath, cause: Exception) -> str:
    if isinstance(cause, IsADirectoryError):
        return "A folder has the name of this file. Move it away and run again"
    if is_local(path):
        return "Make it readable and run again"
    if isinstance(cause, ImportError):
        return "Install its driver (for s3://: `pip install 'rlhf-pipeline[s3]'`) and run again"
    if _error_code(cause) in NO_BUCKET:
        return f"Create the bucket {path.drive}, or correct the address, and run again"
    return (
        "Check that the store answers at its address (AWS_ENDPOINT_URL) and takes the credentials "
        "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE), and run again"
    )


def _error_code(cause: BaseException) -> str | None:
    """The store's error code, if the driver keeps it. S3 distinguishes a missing bucket from a
    missing file only by this code.
    """
    answer = getattr(cause.__cause__, "response", None)
    return answer.get("Error", {}).get("Code") if isinstance(answer, dict) else None
