"""The web app: pages and the REST API below /api/v1."""
