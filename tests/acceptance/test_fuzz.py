"""Whatever is sent to any operation, the server does not break: schemathesis, driven as a program
from the server's own OpenAPI document.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.acceptance.home import Server

ST = str(Path(sys.executable).with_name("schemathesis"))
# Streams have no end; a logout ends the session of the requests that follow.
LEFT_OUT = ("/api/v1/progress/events", "/api/v1/auth/logout")
N_EXAMPLES = 3


def test_no_request_breaks_the_server(site: Server, tmp_path: Path) -> None:
    token = site.home.token(site.add("admin").email)
    command = [ST, "run", f"{site.url}/api/v1/openapi.json", "--url", site.url]
    command += ["--checks", "not_a_server_error", "--max-examples", str(N_EXAMPLES)]
    command += ["--phases", "examples,fuzzing", "--generation-deterministic", "--no-color"]
    command += ["--header", f"Authorization: Bearer {token}", "--header", f"Origin: {site.url}"]
    for path in LEFT_OUT:
        command += ["--exclude-path", path]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    counted = site.connect().get("/metrics").text
    n_accepted = sum(map(int, re.findall(r'http_requests_total\{status="2xx"\} (\d+)', counted)))
    assert n_accepted > 50, "the requests were let in"
    site.home.run("audit", "verify")
