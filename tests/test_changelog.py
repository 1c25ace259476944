"""CHANGELOG.md has a section for each version, newest first, and the version of the package is one of them or comes next."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
UNRELEASED = "Unreleased"
RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+) - (\d{4}-\d\d-\d\d)")


class Release(NamedTuple):
    version: tuple[int, ...]
    day: date


def titles(changelog: str) -> list[str]:
    return re.findall(r"^## (.+)$", changelog, re.MULTILINE)


def release(title: str) -> Release:
    found = RELEASE.fullmatch(title)
    assert found, f"'## {title}' must be '## {UNRELEASED}' or like '## 1.2.3 - 2026-01-31'"
    return Release(tuple(int(part) for part in found.groups()[:3]), date.fromisoformat(found[4]))


def check(changelog: str, version: str) -> None:
    names = titles(changelog)
    unreleased = names[:1] == [UNRELEASED]
    releases = [release(title) for title in names[unreleased:]]
    assert releases, "there is no section of a version"
    versions, days = [each.version for each in releases], [each.day for each in releases]
    assert versions == sorted(set(versions), reverse=True), "the newest version comes first, and each comes once"
    assert days == sorted(days, reverse=True), "a version is younger than those below it"
    packaged = tuple(int(part) for part in version.split("."))
    assert packaged == versions[0] or (unreleased and packaged > versions[0]), (
        f"{version} has no section: name it '## {version} - DATE', or collect its changes under '## {UNRELEASED}'"
    )


def test_the_version_of_the_package_is_in_the_changelog_or_comes_next() -> None:
    [version] = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    check((ROOT / "CHANGELOG.md").read_text(), version)


@pytest.mark.parametrize("version", ["0.2.0", "0.3.0"])
def test_a_version_is_the_newest_section_or_follows_it_while_changes_are_collected(version: str) -> None:
    check("# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-02-01\n\n## 0.1.0 - 2026-01-31\n", version)


@pytest.mark.parametrize(
    ("changelog", "problem"),
    [
        ("## 0.1.0 - 2026-01-31\n", "0.2.0 has no section"),
        ("## Unreleased\n## 0.3.0 - 2026-01-31\n", "0.2.0 has no section"),
        ("## Unreleased\n", "no section of a version"),
        ("## 0.2.0\n", "must be"),
        ("## 0.2.0 - 2026-02-01\n## Unreleased\n", "must be"),
        ("## 0.1.0 - 2026-02-01\n## 0.2.0 - 2026-02-01\n", "newest version comes first"),
        ("## 0.2.0 - 2026-01-31\n## 0.1.0 - 2026-02-01\n", "younger"),
    ],
)
def test_a_changelog_that_could_not_be_tagged_is_refused(changelog: str, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check(changelog, "0.2.0")
