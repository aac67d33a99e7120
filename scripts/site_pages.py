"""A hook of MkDocs: README.md and the texts beside it are pages of the site too, and links reach them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that do not lie in docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links lead to the pages of the site; in a checkout they lead to its files."""
    markdown = re.sub(r"\]\((?:\.\./)?([A-Z]+\.md)", lambda link: f"]({PAGES[link[1]]}", markdown)
    return markdown.replace("](docs/", "](")
