"""Every relative link in a Markdown file of the repository leads to a file that is there, and its anchor to a heading in it.

Anchors are made as repository hosts make them; mkdocs.yml tells the site to do the same. Nothing is asked of the network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[1]
NOT_OURS = {"build", "dist", "site", "node_modules"}

FENCED = re.compile(r"^[ \t]*(?P<fence>```+|~~~+).*?^[ \t]*(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CODE = re.compile(r"(`+)(?!`)(?:(?!\n\n).)*?(?<!`)\1(?!`)", re.DOTALL)  # within a paragraph
HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)?$", re.MULTILINE)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|^ {0,3}\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def markdown_files(root: Path) -> list[Path]:
    """All but those in hidden directories and in what a build leaves behind."""
    return sorted(
        path
        for path in root.rglob("*.md")
        if not any(part.startswith(".") or part in NOT_OURS for part in path.relative_to(root).parts[:-1])
    )


def blocks_removed(text: str) -> str:
    """The text without blocks of code and without comments: what looks like a heading or a link in there is none."""
    return COMMENT.sub("", FENCED.sub("", text))


def links(text: str) -> list[str]:
    """What the relative links of a text point to."""
    found = ["".join(match.groups("")) for match in LINK.finditer(CODE.sub("", blocks_removed(text)))]
    return [target for target in found if not ELSEWHERE.match(target)]


def anchors(text: str) -> set[str]:
    """The anchors of a text's headings. Of two equal headings only the first is found: hosts number them differently."""
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in HEADING.findall(blocks_removed(text))]
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def problems(root: Path) -> Iterator[str]:
    root = root.resolve()
    for path in markdown_files(root):
        for target in links(path.read_text(encoding="utf-8")):
            name, _, anchor = target.partition("#")
            leads_to = (path.parent / unquote(name)).resolve() if name else path
            if target.startswith("/") or not leads_to.is_relative_to(root):
                problem = "leads out of the repository"
            elif not leads_to.exists():
                problem = "leads to nothing"
            elif anchor and (leads_to.suffix != ".md" or anchor not in anchors(leads_to.read_text(encoding="utf-8"))):
                problem = "leads to no heading"
            else:
                continue
            yield f"{path.relative_to(root)}: {target} {problem}"


def test_every_link_leads_to_a_file_and_every_anchor_to_a_heading() -> None:
    assert {ROOT / name for name in ("README.md", "CHANGELOG.md", "docs/getting-started.md")} <= set(markdown_files(ROOT))
    assert list(problems(ROOT)) == []


@pytest.mark.parametrize(
    "link",
    [
        "[a](other.md)",
        "[a](other.md#a-few-words-and-a_name)",
        "[a](other.md 'a title')",
        "[a](#here)",
        "[a]: folder",
        "![a](folder/picture%201.svg)",
        "[a](https://example.com/nothing)",
        "[a](mailto:someone@example.com)",
        "`[a](nothing.md)`",
        "``` md\n[a](nothing.md)\n```",
        "<!--\n[a](nothing.md)\n-->",
    ],
)
def test_a_good_link_is_accepted(link: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "picture 1.svg").touch()
    (tmp_path / "other.md").write_text("# A few `words`, and [a_name](page.md)!\n```sh\n# not a heading\n```\n")
    (tmp_path / "page.md").write_text(f"# Page\n\n## Here\n\n{link}\n")
    assert list(problems(tmp_path)) == []


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("[a](nothing.md)", "to nothing"),
        ("[two\nlines](nothing.md)", "to nothing"),
        ("![a](nothing.svg)", "to nothing"),
        ("[a]: nothing.md", "to nothing"),
        ("[`code`](nothing.md)", "to nothing"),
        ("[a](other.md#nothing)", "to no heading"),
        ("[a](other.md#not-a-heading)", "to no heading"),
        ("[a](other.txt#other)", "to no heading"),
        ("[a](#nothing)", "to no heading"),
        ("[a](../outside.md)", "out of the repository"),
        ("[a](/page.md)", "out of the repository"),
    ],
)
def test_a_bad_link_is_found(link: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "outside.md").touch()
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "other.txt").touch()
    (tmp_path / "repository" / "other.md").write_text("# Other\n```sh\n# not a heading\n```\n")
    (tmp_path / "repository" / "page.md").write_text(f"# Page\n\n{link}\n")
    [found] = problems(tmp_path / "repository")
    assert problem in found
