"""Builds the command that starts MLflow's web server as one process.

`mlflow server` would keep a launcher of 195 MB that only waits.
"""

import sys
from pathlib import Path

from rlhf_pipeline.config import silence_telemetry


def web_server_command(
    tracking_uri: str, artifacts: Path, *, host: str, port: int
) -> tuple[list[str], dict[str, str]]:
    """Command and environment of MLflow's web server with one worker, as started by `mlflow
    server`.

    `tracking_uri` is passed only in the environment: it may hold a password, and every user can
    read command lines.
    """
    silence_telemetry()
    from mlflow.environment_variables import _MLFLOW_SGI_NAME
    from mlflow.server import constants

    environ = {
        constants.BACKEND_STORE_URI_ENV_VAR: tracking_uri,
        constants.REGISTRY_STORE_URI_ENV_VAR: tracking_uri,
        constants.ARTIFACT_ROOT_ENV_VAR: "mlflow-artifacts:/",
        constants.ARTIFACTS_DESTINATION_ENV_VAR: str(artifacts),
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
        _MLFLOW_SGI_NAME.name: "uvicorn",
        # MLflow's default starts eight processes and uses 1.2 GB for a job queue that is not needed
        # here.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    return [
        sys.executable,
        "-m",
        "uvicorn",
        "--host",
        host,
        "--port",
        str(port),
        "mlflow.server.fastapi_app:app",
    ], environ
