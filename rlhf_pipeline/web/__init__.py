"""The web app: pages and the REST API below /api/v1.

A folder per page: `routes` answer, `queries` read, `page.html` shows. `sections` lists them,
`site` holds what they share. Arithmetic stays in the stages' folders.
"""
