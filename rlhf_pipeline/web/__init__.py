"""The web app: people vote, curate and look, by pages and by /api/v1. Knows the library; nobody but
the command line imports it.
"""

from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.auth import first_admin
from rlhf_pipeline.web.recent import CacheTimes
from rlhf_pipeline.web.serving import Server, serve

__all__ = ["CacheTimes", "Server", "create_app", "first_admin", "serve"]
