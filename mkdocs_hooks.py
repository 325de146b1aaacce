"""What the site of the documentation needs beyond `docs/`: the project's own pages, figures, docstrings, and
notebooks as they come out when they are run."""

from __future__ import annotations

import logging
import os
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import griffe
import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbclient import NotebookClient
from nbconvert import MarkdownExporter
from traitlets.config import Config

ROOT = Path(__file__).parent
PAGES = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
FIGURES = "benchmarks/results/*.json*"
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_README = "readme.md"  # in capitals it would take the place of `index.md`


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files from outside, where links from the project's root would find them."""
    for path in [*(ROOT / page for page in PAGES), *ROOT.glob(FIGURES), ROOT / "LICENSE"]:
        place = _README if path.name == "README.md" else path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, place, abs_src_path=str(path)))
    for path in sorted(Path(config.docs_dir, "notebooks").glob("*.ipynb")):
        for place, content in _run(path).items():
            files.append(File.generated(config, f"notebooks/{place}", content=content))
    return files


def _run(path: Path) -> dict[str, str | bytes]:
    """Run a notebook, and return its page and its pictures by name. A cell that fails ends the build."""
    os.environ["DPSINKHORN_USED_DATA"] = "off"  # whoever builds the site has not used data of theirs
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported: see dpsinkhorn.cli
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, config=Config(KernelManager={"transport": "ipc"})).execute()
    text, made = MarkdownExporter().from_notebook_node(notebook, {"unique_key": path.stem})
    text = re.sub(  # a picture is described by its cell
        rf"!\[png\](?=\({path.stem}_(\d+)_)",
        lambda found: f"![{notebook.cells[int(found[1])].metadata['alt']}]",
        text,
    )
    title, rest = text.split("\n", 1)
    return {f"{path.stem}.md": f"{title}\n\n[As a notebook]({path.name})\n{rest}", **made["outputs"]}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Let links find their pages from where the site has them, and list what a package exports."""
    if page.file.src_uri in (*PAGES, _README):
        markdown = markdown.replace("](docs/", "](")
    else:  # pages of `docs/` become pages of the root
        up = "../" * page.file.src_uri.count("/")
        markdown = re.sub(rf"\]\({up}\.\./(?=[A-Z]|benchmarks/)", f"]({up}", markdown)
    if "/" not in page.file.src_uri:
        markdown = markdown.replace("](README.md", f"]({_README}")
    return re.sub(r"^\[exports of (\S+)\]$", lambda found: _exports(found[1]), markdown, flags=re.MULTILINE)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001
    """Mend what a screen reader stumbles over."""
    return _for_everyone(output)


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:  # noqa: ARG001
    """Do the same for the page that says that there is no such page."""
    return _for_everyone(output) if template_name.endswith(".html") else output


def _for_everyone(html: str) -> str:
    """Name the search, let empty cells be no headings, and mark options, whose names stay on one line."""
    html = html.replace('role="dialog"', 'role="dialog" aria-label="Search"')
    html = re.sub(r"<th([^>]*)></th>", r"<td\1></td>", html)
    mark = r'<span class="option">\g<0></span>'
    return re.sub(r"<code>.*?</code>", lambda code: _OPTION.sub(mark, code[0]), html, flags=re.DOTALL)


def _exports(package: str) -> str:
    """List the public names of a package; one without a docstring is a warning, and so an error."""
    names = import_module(package).__all__
    for name in names:
        if not _sources()[f"{package}.{name}"].has_docstring:
            logging.getLogger("mkdocs.hooks").warning("%s.%s has no docstring", package, name)
    return "\n\n".join(f"::: {package}.{name}" for name in names)


@cache
def _sources() -> griffe.ModulesCollection:
    loader = griffe.GriffeLoader(search_paths=[ROOT / "src"])
    loader.load("dpsinkhorn")
    loader.resolve_aliases()
    return loader.modules_collection


class Doctests(griffe.Extension):
    """Shows the doctests of docstrings as code."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Put a fence around each run of lines that begins with a prompt."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^>>> .+?(?=\n\n|\Z)",
                r"```pycon\n\g<0>\n```",
                obj.docstring.value,
                flags=re.MULTILINE | re.DOTALL,
            )
