"""What the site needs beside docs/: pages from elsewhere in the repository, and files that pages link to."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "examples/flower/README.md": "examples/flower.md",
    "examples/secure/README.md": "examples/secure.md",
}
LINK = re.compile(r"(\[[^\]]*\])\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from elsewhere, and what pages link to outside of docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    linked = {target for file in files.documentation_pages() for target in _targets(file.src_uri, file.content_string)}
    for target in sorted(linked):
        if not target.startswith("docs/") and target not in PAGES and (ROOT / target).is_file():
            files.append(File.generated(config, _place(target), abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links where their targets are on the site. A folder of the repository is not on it: only its name stays."""
    uri = page.file.src_uri

    def replace(match: re.Match[str]) -> str:
        target = _resolve(uri, match[2])
        if target is None:
            return match[0]
        if (ROOT / target).is_dir():
            return match[1].strip("[]")
        return f"{match[1]}({_relative(_place(target), uri)}{match[3] or ''})"

    return LINK.sub(replace, markdown)


def on_post_build(config: Any) -> None:
    """No page may load a script, a style or a font from another host."""
    loads = re.compile(r"<(?:script|img|iframe)[^>]+src=\"?(?:https?:)?//|<link[^>]+(?:stylesheet|preconnect)[^>]+//")
    for page in Path(config["site_dir"]).rglob("*.html"):
        found = loads.search(page.read_text(encoding="utf-8"))
        if found:
            raise PluginError(f"{page} loads from another host: {found[0]}")


def _targets(uri: str, markdown: str) -> set[str]:
    found = {_resolve(uri, match[2]) for match in LINK.finditer(markdown)}
    return {target for target in found if target is not None}


def _resolve(uri: str, target: str) -> str | None:
    """The path of a link's target in the repository; None: it is an address."""
    if re.match(r"[a-z]+:", target):
        return None
    source = next((source for source, page in PAGES.items() if page == uri), f"docs/{uri}")
    return os.path.normpath(PurePosixPath(source).parent / target)


def _place(target: str) -> str:
    """Where a file of the repository is on the site."""
    if target in PAGES:
        return PAGES[target]
    return target.removeprefix("docs/") if target.startswith("docs/") else f"repository/{target}"


def _relative(place: str, uri: str) -> str:
    return os.path.relpath(place, PurePosixPath(uri).parent)
