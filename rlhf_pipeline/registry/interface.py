"""How MLflow's web interface is started as one process: `mlflow server` keeps 195 MB in a launcher
that only waits.
"""

import sys
from pathlib import Path

from rlhf_pipeline.config import silence_telemetry


def web_server_command(
    tracking_uri: str, artifacts: Path, *, host: str, port: int
) -> tuple[list[str], dict[str, str]]:
    """The command of MLflow's web server with one worker, and the environment it needs: what
    `mlflow server` starts.

    `tracking_uri` is in the environment alone, because it may hold a password and every user can
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
        # MLflow's default starts eight more processes and 1.2 GB for a job queue that nothing here
        # uses.
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
