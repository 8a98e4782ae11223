"""Hooks of mkdocs: files outside docs/ that a page links to are part of the site, so that the site is whole by itself.

A page of the site stands where it stands in the repository, less the folder docs/: CONTRIBUTING.md is /CONTRIBUTING/.
A folder is one page with its files.
"""

import json
import posixpath
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# mkdocs loads this file by its path, so it finds no module beside it.
sys.path.append(str(ROOT))

from docsite.search_index import adapted  # noqa: E402

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that pages link to, and those that these link to."""
    new = [_in_repository(page.src_uri) for page in files.documentation_pages()]
    while new:
        page = new.pop()
        for link in _LINK.findall((ROOT / page).read_text(encoding="utf-8")):
            target = _target(page, link)
            uri = _in_site(target)
            if (ROOT / target).exists() and files.get_file_from_path(uri) is None:
                files.append(_file(config, target, uri))
                if target.endswith(".md"):
                    new.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 (mkdocs)
    """Let links lead to where their targets stand in the site."""
    uri = page.file.src_uri
    return _LINK.sub(
        lambda link: posixpath.relpath(_in_site(_target(_in_repository(uri), link[1])), posixpath.dirname(uri) or "."),
        markdown,
    )


def on_post_build(config: MkDocsConfig) -> None:
    """Change the index after the search plugin has written it, and what the theme's worker is asked."""
    site = Path(config.site_dir)
    _adapt_index(site / "search/search_index.json")
    (worker,) = site.glob("assets/javascripts/workers/search.*.min.js")
    _put_query_before(worker)


def _adapt_index(path: Path) -> None:
    index = json.loads(path.read_text(encoding="utf-8"))
    text = json.dumps(adapted(index), ensure_ascii=False)
    path.write_text(text, encoding="utf-8")


def _put_query_before(worker: Path) -> None:
    """Let the theme's worker get each query as search_query.js changes it. Its listener has to come first."""
    query = (ROOT / "docsite/search_query.js").read_text(encoding="utf-8")
    script = worker.read_text(encoding="utf-8")
    # A function of its own keeps its names apart from the worker's.
    worker.write_text(f"(() => {{\n{query}}})();\n{script}", encoding="utf-8")


def _target(page: str, link: str) -> str:
    """The path in the repository that a link of a page leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def _in_repository(uri: str) -> str:
    return uri if (ROOT / uri).exists() else f"docs/{uri}"


def _in_site(target: str) -> str:
    return f"{target}/index.md" if (ROOT / target).is_dir() else target.removeprefix("docs/")


def _file(config: MkDocsConfig, target: str, uri: str) -> File:
    path = ROOT / target
    if path.is_dir():
        return File.generated(config, uri, content=_listing(path))
    return File.generated(config, uri, abs_src_path=str(path))


def _listing(folder: Path) -> str:
    files = "\n".join(
        f"## {file.name}\n\n```yaml\n{file.read_text(encoding='utf-8')}```\n" for file in sorted(folder.glob("*.yaml"))
    )
    return f"# {folder.relative_to(ROOT)}/\n\n{files}"
