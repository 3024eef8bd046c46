"""Section releases: what is deployed, what waits for an approver, and the history of both."""
