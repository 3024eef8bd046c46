"""Hooks of the site: adds the generated reference pages, and notebooks as pages.

`extra.repository` of mkdocs.yml (empty) is the one place that names a public address: with it, each
notebook has a link to open it in Colab, and the start page a badge of the version.
"""

import json
import logging
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from docs.reference import PAGES
from rlhf_pipeline import __version__

COLAB = "https://colab.research.google.com/github"


def on_files(files: Files, *, config: Any) -> Files:
    repository = str(config.extra.get("repository") or "")
    for name, write in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=write()))
    for path in sorted(Path(config.docs_dir, "notebooks").glob("*.ipynb")):
        text = render_notebook(path, repository)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    repository = str(config.extra.get("repository") or "")
    if page.file.src_uri != "index.md" or not repository:
        return markdown
    badge = f"[![version](https://img.shields.io/badge/version-{__version__}-blue)]"
    return markdown.replace("\n", f"\n\n{badge}(https://github.com/{repository})\n", 1)


def render_notebook(path: Path, repository: str = "") -> str:
    """A notebook as Markdown: its texts and its code, without outputs."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    if repository:
        address = f"{COLAB}/{repository}/blob/main/docs/notebooks/{path.name}"
        parts.insert(1, f"[Open in Colab]({address})")
    return "\n\n".join(parts)


logging.getLogger("mkdocs.plugins.griffe").setLevel(logging.ERROR)
