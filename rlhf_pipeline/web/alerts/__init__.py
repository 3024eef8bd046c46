"""Section `alerts` of the web app: its routes."""
