"""The web app: pages and the REST API below /api/v1."""

from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.auth import create_first_admin
from rlhf_pipeline.web.memory_cache import CacheTimes
from rlhf_pipeline.web.server import WebServer, serve

__all__ = ["CacheTimes", "WebServer", "create_app", "create_first_admin", "serve"]
