"""What the site of ``make docs`` has beside the pages of this folder: the notebook, and files that pages link to.

A link between two files of the repository works on a forge as it is. On the site the file is below ``repository/``, or
in this folder's place at the top. A folder has no page: only the text of a link to it is left.
"""

import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from properdocs.structure.files import File, Files
from pygments.formatters import HtmlFormatter

ROOT = Path(__file__).resolve().parents[1]
_NOTEBOOK, _NOTEBOOK_PAGE = "docs/quickstart.ipynb", "quickstart.md"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the notebook as a page, the colours of code, and each file that a page links to."""
    notebook = "\n\n".join(_cells(json.loads((ROOT / _NOTEBOOK).read_text(encoding="utf-8"))))
    files.append(File.generated(config, _NOTEBOOK_PAGE, content=notebook))
    files.append(File.generated(config, "pygments.css", content=HtmlFormatter().get_style_defs(".highlight")))
    pages = [f"docs/{page.src_uri}" for page in files.documentation_pages() if page.src_uri != _NOTEBOOK_PAGE]
    while pages:
        page = pages.pop()
        for link in _LINK.finditer((ROOT / page).read_text(encoding="utf-8")):
            target = _target(page, link[3])
            if (ROOT / target).is_file() and files.get_file_from_path(_uri(target)) is None:
                files.append(File.generated(config, _uri(target), abs_src_path=str(ROOT / target)))
                pages += [target] if target.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Let the links of a page point to where the site has the files."""
    uri = page.file.src_uri
    path = uri.removeprefix("repository/") if uri.startswith("repository/") else f"docs/{uri}"

    def on_site(link: re.Match[str]) -> str:
        target = _target(path, link[3])
        if (ROOT / target).is_dir():
            return link[2]
        place = posixpath.relpath(_uri(target), posixpath.dirname(uri))
        return f"{link[1]}[{link[2]}]({place}{link[4] or ''})"

    return _LINK.sub(on_site, markdown)


def _target(page: str, link: str) -> str:
    """Return the path of a linked file from the root of the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def _uri(path: str) -> str:
    """Return where the site has the source of a file of the repository."""
    if path == _NOTEBOOK:
        return _NOTEBOOK_PAGE
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"


def _cells(notebook: dict[str, Any]) -> Iterator[str]:
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        yield source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
        for output in cell.get("outputs", ()):
            yield "```text\n" + "".join(output.get("text") or output["data"]["text/plain"]) + "\n```"
