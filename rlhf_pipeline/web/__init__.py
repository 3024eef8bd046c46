"""The web app: people vote, curate and look, by pages and by /api/v1. Knows the library; nobody but
the command line imports it.
"""

from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.auth import create_first_admin
from rlhf_pipeline.web.memory_cache import CacheTimes
from rlhf_pipeline.web.server import WebServer, serve

__all__ = ["CacheTimes", "WebServer", "create_app", "create_first_admin", "serve"]
