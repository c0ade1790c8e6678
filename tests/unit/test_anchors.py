"""Source anchors are places the tools read, reduced to what may be told."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanfold.anchors import Anchors
from fanfold.model.step import SourceAnchor
from fanfold.model.validation import outcome_from_json

pytestmark = pytest.mark.contract("C4")


@pytest.fixture
def anchors(tmp_path: Path) -> Anchors:
    return Anchors(tmp_path)


def places(anchors: Anchors) -> list[str]:
    return [anchor.url_or_path for anchor in anchors.collected]


def test_anchor_has_tool_place_and_lines(anchors: Anchors) -> None:
    anchors.observe("grep", "docs/a.md", "3-17")
    assert anchors.collected == (SourceAnchor(tool="grep", url_or_path="docs/a.md", lines="3-17"),)


def test_same_place_is_told_once_and_other_lines_apart(anchors: Anchors) -> None:
    for lines in ("3", "", "3", "4", ""):
        anchors.observe("grep", "a.md", lines)
    assert [anchor.lines for anchor in anchors.collected] == ["3", "", "4"]


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://user:secret@example.org/a/b?token=1#part", "https://example.org/a/b"),
        ("HTTPS://a@b:c@Example.org:8443/x;y?z", "https://Example.org:8443/x;y"),
        ("http://[::1]:80/", "http://[::1]:80/"),
        ("https://example.org?key=secret", "https://example.org"),
        ("https://example.org#frag@ment", "https://example.org"),
        ("file:///etc/hosts", "file:///etc/hosts"),
    ],
)
def test_urls_keep_scheme_host_and_path_only(anchors: Anchors, url: str, place: str) -> None:
    anchors.observe("fetch", url)
    assert places(anchors) == [place]


def test_paths_are_relative_to_the_workspace(anchors: Anchors, tmp_path: Path) -> None:
    anchors.observe("read", str(tmp_path / "sub" / "a.txt"))
    anchors.observe("read", "./sub//b.txt")
    assert places(anchors) == ["sub/a.txt", "sub/b.txt"]


@pytest.mark.parametrize(
    "place", ["/etc/passwd", "../up", "a/../../up", "//user:pw@host/x", "http://[bad/", "a\nb", "\udc80", "x" * 4097]
)
def test_what_cannot_be_told_is_left_out(anchors: Anchors, place: str) -> None:
    anchors.observe("read", place)
    assert anchors.collected == ()


def test_an_anchor_has_at_most_4_kib_in_bytes(anchors: Anchors) -> None:
    anchors.observe("read", "é" * 2046)  # 4,092 bytes, and 4 of the tool's name
    anchors.observe("read", "é" * 2046 + "e")
    assert places(anchors) == ["é" * 2046]


def test_64_anchors_are_kept_and_they_are_the_first(anchors: Anchors) -> None:
    for number in range(100):
        anchors.observe("read", f"{number}.txt")
    assert places(anchors) == [f"{number}.txt" for number in range(64)]


@pytest.mark.parametrize("lines", ["all", "3-", "-3", "3\n", "1,2", "9" * 200])
def test_lines_that_are_no_range_count_as_the_whole(anchors: Anchors, lines: str) -> None:
    anchors.observe("read", "a.txt", lines)
    assert [anchor.lines for anchor in anchors.collected] == [""]


def test_every_anchor_passes_the_validation_of_outcomes(anchors: Anchors) -> None:
    for tool in ("", "read", "x" * 128, "x" * 129, "line\nbreak"):
        for place in ("", ".", "a b", "https://h/p", "\x00", "é" * 2000):
            anchors.observe(tool, place, "1-2")
    assert {anchor.tool for anchor in anchors.collected} == {"read", "x" * 128}
    outcome = outcome_from_json(
        {
            "task_id": "t",
            "agent": "a",
            "success": True,
            "source_anchors": [
                {"tool": anchor.tool, "url_or_path": anchor.url_or_path, "lines": anchor.lines}
                for anchor in anchors.collected
            ],
        }
    )
    assert outcome.source_anchors == anchors.collected
