"""Makes links that lead out of docs/ work on the site as they do in the repository.

The pages link to the examples and to files at the top of the repository by their paths there, so that whoever reads the files
can follow them. For the site each example becomes a page that shows its code, the files become pages, and the links lead to
these. What has no page is left as it is, and `mkdocs build --strict` refuses it. Comments are for the tests: they are left out.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PROJECT = {"CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md"}
LANGUAGES = {".py": "python", ".ini": "ini", ".yaml": "yaml", ".json": "json"}

LINK = re.compile(r"\]\((?![#/]|[a-z]+:)([^)#\s]+)")
COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, uri in PROJECT.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    entries = {}
    for path in sorted((ROOT / "examples").iterdir()):
        if sources := list(_sources(path)):
            uri = _on_site(PurePosixPath("examples", path.name))
            files.append(File.generated(config, uri, content=_example(path, sources)))
            entries[f"[{path.name}]({PurePosixPath(uri).name})"] = _summary(path, sources)
    listing = "\n".join(f"- {link}: {summary}" for link, summary in entries.items())
    files.append(File.generated(config, "examples/index.md", content=f"# Examples\n\n{listing}\n"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    if uri.startswith("examples/"):
        return markdown
    path = next((path for path, its_page in PROJECT.items() if its_page == uri), f"docs/{uri}")

    def turned(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[1]))
        return f"]({posixpath.relpath(_on_site(PurePosixPath(target)), posixpath.dirname(uri) or '.')}"

    return LINK.sub(turned, COMMENT.sub("", markdown))


def _on_site(path: PurePosixPath) -> str:
    """The page of a file of the repository."""
    if path.parts[0] == "docs":
        return str(path.relative_to("docs"))
    if path.parts[0] == "examples":
        return f"examples/{PurePosixPath(path.parts[1]).stem}.md" if len(path.parts) > 1 else "examples/index.md"
    return PROJECT.get(str(path), f"../{path}")


def _sources(example: Path) -> Iterator[Path]:
    """The files of an example that have something to show: of a single file, itself."""
    for path in [example] if example.is_file() else sorted(example.rglob("*")):
        if path.suffix in LANGUAGES and path.stat().st_size:
            yield path


def _example(example: Path, sources: list[Path]) -> str:
    readme = example / "README.md"
    parts = [readme.read_text(encoding="utf-8") if readme.is_file() else f"# {example.name}\n"]
    for path in sources:
        if path != example:
            parts.append(f"## {path.relative_to(example).as_posix()}\n")
        parts.append(f"```{LANGUAGES[path.suffix]}\n{path.read_text(encoding='utf-8')}```\n")
    return "\n".join(parts)


def _summary(example: Path, sources: list[Path]) -> str:
    """The title of its README, or the first line of its first docstring."""
    readme = example / "README.md"
    if readme.is_file():
        return readme.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
    docstrings = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) for path in sources if path.suffix == ".py")
    return next(filter(None, docstrings), "").split("\n")[0]
