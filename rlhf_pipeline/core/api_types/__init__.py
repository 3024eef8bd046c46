"""The records of the REST API, one file per noun, shared by the web app and the client."""
