"""Hook of MkDocs that adds README.md and other texts of the root folder to the site, and adapts links."""

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
    """Add the pages that are not in docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Convert links to files of a checkout to links to pages of the site."""
    markdown = re.sub(r"\]\((?:\.\./)?([A-Z]+\.md)", lambda link: f"]({PAGES[link[1]]}", markdown)
    return markdown.replace("](docs/", "](")
