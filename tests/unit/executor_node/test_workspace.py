"""Nothing leads out of a workspace, nothing in it blocks, and walks are complete, sorted and bounded."""

from __future__ import annotations

import glob
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from executor_node.globs import MAX_PATTERN_PARTS
from executor_node.workspace import Workspace
from fanfold.agent import AgentFailed, WorkspaceFiles

SECRET = "the secret"


class Observed(list[tuple[str, str, str]]):
    def __call__(self, tool: str, url_or_path: str, lines: str) -> None:
        self.append((tool, url_or_path, lines))


@pytest.fixture
def observed() -> Observed:
    return Observed()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a neighbour that must stay unseen."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text(SECRET)
    root = tmp_path / "work"
    (root / "docs" / "deep").mkdir(parents=True)
    (root / "README.md").write_text("# Hello\n")
    (root / "docs" / "guide.md").write_text("guide\n")
    (root / "docs" / "deep" / "end.txt").write_text("end")
    return root


@pytest.fixture
def workspace(root: Path, observed: Observed) -> Workspace:
    return Workspace(root, observed)


def paths(workspace: WorkspaceFiles, pattern: str = "**/*") -> list[str]:
    return [path for path, _ in workspace.walk(pattern)]


@pytest.mark.contract("C4")
def test_reading_gives_the_text_unchanged_and_leaves_an_anchor(
    workspace: Workspace, root: Path, observed: Observed
) -> None:
    (root / "odd.txt").write_bytes("\ufeffné\r\n\x0cend".encode())
    assert workspace.read_text("./odd.txt", tool="read") == "\ufeffné\r\n\x0cend"
    assert workspace.read_text(str(root / "docs" / "guide.md"), tool="look") == "guide\n"
    assert observed == [("read", "odd.txt", ""), ("look", "docs/guide.md", "")]


@pytest.mark.contract("C4")
def test_only_a_successful_call_with_a_tool_leaves_an_anchor(workspace: Workspace, observed: Observed) -> None:
    workspace.read_text("README.md")
    workspace.resolve("README.md")
    list(workspace.walk())
    with pytest.raises(AgentFailed):
        workspace.read_text("missing.md", tool="read")
    assert observed == []
    assert workspace.glob("docs/**/*", tool="list") == ["docs/deep/end.txt", "docs/guide.md"]
    assert observed == [("list", "docs/deep/end.txt", ""), ("list", "docs/guide.md", "")]


def test_resolve_gives_the_absolute_path_without_links(workspace: Workspace, root: Path) -> None:
    (root / "link").symlink_to("docs/deep")
    assert workspace.resolve("link/end.txt") == root / "docs/deep/end.txt"
    assert workspace.resolve("docs") == root / "docs"
    assert workspace.resolve(".") == root
    with pytest.raises(AgentFailed, match=r"no such file in the workspace: docs/missing$"):
        workspace.resolve("docs/missing")


def link_file(root: Path) -> str:
    (root / "link").symlink_to(root.parent / "outside/secret.txt")
    return "link"


def link_file_relative(root: Path) -> str:
    (root / "docs" / "link").symlink_to("../../outside/secret.txt")
    return "docs/link"


def link_folder(root: Path) -> str:
    (root / "link").symlink_to(root.parent / "outside")
    return "link/secret.txt"


def link_chain(root: Path) -> str:
    (root / "first").symlink_to("docs/second")
    (root / "docs" / "second").symlink_to("deep/third")
    (root / "docs" / "deep" / "third").symlink_to(root.parent / "outside")
    return "first/secret.txt"


def link_to_link_file(root: Path) -> str:
    (root / "inner").symlink_to("../outside/secret.txt")
    (root / "outer").symlink_to("inner")
    return "outer"


def link_folder_and_back(root: Path) -> str:
    (root.parent / "outside" / "back").symlink_to(root.parent / "outside/secret.txt")
    (root / "link").symlink_to("../outside")
    return "link/back"


def dot_dot(root: Path) -> str:
    return "../outside/secret.txt"


def dot_dot_that_stays_inside(root: Path) -> str:
    return "docs/../README.md"


def absolute(root: Path) -> str:
    return str(root.parent / "outside/secret.txt")


def absolute_of_similar_name(root: Path) -> str:
    (root.parent / "work-other").mkdir()
    (root.parent / "work-other" / "secret.txt").write_text(SECRET)
    return str(root.parent / "work-other/secret.txt")


def absolute_that_does_not_exist(root: Path) -> str:
    return "/no/such/file"


def link_that_leads_outside_to_nothing(root: Path) -> str:
    (root / "link").symlink_to("/no/such/file")
    return "link"


ESCAPES = [
    link_file,
    link_file_relative,
    link_folder,
    link_chain,
    link_to_link_file,
    link_folder_and_back,
    dot_dot,
    dot_dot_that_stays_inside,
    absolute,
    absolute_of_similar_name,
    absolute_that_does_not_exist,
    link_that_leads_outside_to_nothing,
]


@pytest.mark.parametrize("escape", ESCAPES, ids=lambda escape: escape.__name__)
def test_no_path_leads_out(workspace: Workspace, root: Path, observed: Observed, escape: Callable[[Path], str]) -> None:
    path = escape(root)
    before = paths(workspace)
    for call in (workspace.resolve, workspace.read_text):
        with pytest.raises(AgentFailed, match=r"^outside the workspace: "):
            call(path)
    assert before == ["README.md", "docs/deep/end.txt", "docs/guide.md"]
    assert observed == []


@pytest.mark.parametrize("pattern", ["link/*", "**/secret.txt", "link/**", "[l]ink/secret*", "*/*.txt"])
def test_no_pattern_leads_out(workspace: Workspace, root: Path, pattern: str) -> None:
    link_folder(root)
    (root / "secret.txt").symlink_to("../outside/secret.txt")
    assert paths(workspace, pattern) == []


@pytest.mark.parametrize("pattern", ["../*", "docs/../../outside/*", "/etc/*", "**/../*"])
def test_patterns_that_say_outside_are_refused_at_once(workspace: Workspace, pattern: str) -> None:
    with pytest.raises(AgentFailed, match=r"^outside the workspace"):
        workspace.walk(pattern)


@pytest.mark.parametrize("pattern", ["", ".", "./", "/".join("a" * 3000)])
def test_patterns_that_name_no_file_are_refused(workspace: Workspace, pattern: str) -> None:
    with pytest.raises(AgentFailed, match=r"^not a pattern for files"):
        workspace.walk(pattern)


@pytest.mark.parametrize("swapped", ["docs", "docs/deep", "docs/deep/end.txt"])
def test_what_is_swapped_for_a_link_after_the_check_is_not_followed(
    workspace: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    twin = root.parent / "outside" / "twin"
    (twin / "docs" / "deep").mkdir(parents=True)
    (twin / "docs" / "deep" / "end.txt").write_text(SECRET)
    realpath = os.path.realpath

    def realpath_then_swap(path: Path) -> str:
        real = realpath(path)
        (root / swapped).rename(root / "away")
        (root / swapped).symlink_to(twin / swapped)
        return real

    monkeypatch.setattr(os.path, "realpath", realpath_then_swap)
    with pytest.raises(AgentFailed):
        workspace.read_text("docs/deep/end.txt")
    assert (root / "docs/deep/end.txt").read_text() == SECRET  # the swap did happen


def test_a_folder_swapped_for_a_link_during_a_walk_is_not_followed(workspace: Workspace, root: Path) -> None:
    walk = workspace.walk()
    assert next(walk)[0] == "README.md"
    (root / "docs").rename(root / "away")
    (root / "docs").symlink_to(root.parent / "outside")
    assert list(walk) == []


def test_links_that_stay_inside_are_files(workspace: Workspace, root: Path) -> None:
    (root / "alias.md").symlink_to("docs/guide.md")
    (root / "folder").symlink_to("docs")
    assert paths(workspace, "*.md") == ["README.md", "alias.md"]
    assert workspace.read_text("alias.md") == "guide\n"
    assert workspace.read_text("folder/guide.md") == "guide\n"
    assert paths(workspace, "folder/*") == []  # a walk would see files twice, or never end


def test_links_that_lead_nowhere_are_told_and_left_out(workspace: Workspace, root: Path) -> None:
    (root / "loop").symlink_to("loop")
    (root / "dangling").symlink_to("nothing")
    (root / "docs" / "up").symlink_to("..")
    with pytest.raises(AgentFailed, match=r"^a link that cannot be followed: loop$"):
        workspace.read_text("loop")
    with pytest.raises(AgentFailed, match=r"^no such file in the workspace: dangling$"):
        workspace.read_text("dangling")
    assert paths(workspace) == ["README.md", "docs/deep/end.txt", "docs/guide.md"]


@pytest.mark.timeout(10)
def test_special_files_do_not_block(workspace: Workspace, root: Path) -> None:
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(root / "socket"))
    for special in ("fifo", "socket"):
        with pytest.raises(AgentFailed, match=f"^not a regular file: {special}$"):
            workspace.read_text(special)
    assert paths(workspace, "*") == ["README.md"]


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("docs", "a folder, not a file: docs"),
        ("", "a folder, not a file: "),
        ("README.md/x", "no such file in the workspace: README.md/x"),
        ("a\0b", r"no such file in the workspace: a\?b"),
        ("\ud800", r"no such file in the workspace: \?"),
        ("line\nbreak", r"no such file in the workspace: line\?break"),
        ("x" * 300, rf"no such file in the workspace: {'x' * 200}\.\.\."),
        ("a/" * 500_000, r"no such file in the workspace: (a/){100}\.\.\."),
    ],
    ids=["folder", "empty", "below a file", "NUL", "surrogate", "line break", "long name", "long path"],
)
def test_paths_that_cannot_be_read_are_told_in_one_short_line(workspace: Workspace, path: str, message: str) -> None:
    with pytest.raises(AgentFailed, match=f"^{message}$") as caught:
        workspace.read_text(path)
    assert not caught.value.retryable


def test_a_file_of_the_limit_is_read_and_a_larger_one_refused(root: Path, observed: Observed) -> None:
    workspace = Workspace(root, observed, max_file_bytes=1000)
    (root / "limit.txt").write_text("x" * 1000)
    (root / "over.txt").write_text("x" * 1001)
    assert len(workspace.read_text("limit.txt")) == 1000
    with pytest.raises(AgentFailed, match=r"^too large to read: over\.txt has more than 1,000 bytes$"):
        workspace.read_text("over.txt")


def test_a_huge_file_is_refused_by_default_without_reading_it(workspace: Workspace, root: Path) -> None:
    with (root / "huge").open("wb") as file:
        file.truncate(2**40)  # sparse: a terabyte
    with pytest.raises(AgentFailed, match=r"more than 8,388,608 bytes$"):
        workspace.read_text("huge")


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"fine\xff", r"^not UTF-8 text: bin \(byte 4\)$"), (b"a\0b", r"^not text: bin has a NUL character$")],
)
def test_binary_files_are_told(workspace: Workspace, root: Path, data: bytes, message: str) -> None:
    (root / "bin").write_bytes(data)
    with pytest.raises(AgentFailed, match=message):
        workspace.read_text("bin")


def test_no_descriptor_is_left_open(workspace: Workspace, root: Path) -> None:
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "fifo")
    before = len(os.listdir("/proc/self/fd"))
    for path in ("README.md", "docs", "docs/missing", "docs/deep/end.txt/x", "fifo", "loop"):
        for _ in range(3):
            try:
                workspace.read_text(path)
            except AgentFailed:
                continue
    next(workspace.walk())
    list(workspace.walk())
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def tree(root: Path) -> Path:
    for path in ("a-b.txt", "a.txt", "a/b.txt", "a/c/d.md", "a/c/[x].md", "b/a.txt", "b/a/a.txt", "é/ü.txt", "A.TXT"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return root


PATTERNS = [
    "**/*",
    "*",
    "*.txt",
    "a/*",
    "a/**/*",
    "**/a.txt",
    "**/a/*",
    "**/a/**/*",
    "?.txt",
    "[ab].txt",
    "[!a]/*",
    "*/*/*",
    "**/**/*.md",
    "./a//c/*.md",
    "a/c/[[]x].md",
    "missing/*",
    "a",
    "**/*.TXT",
    "docs/**/deep/*",
    "*/**/*.txt",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_match_what_the_standard_library_matches(workspace: Workspace, tree: Path, pattern: str) -> None:
    expected = sorted(
        os.path.normpath(path)
        for path in set(glob.glob(pattern, root_dir=tree, recursive=True))
        if (tree / path).is_file()
    )
    assert paths(workspace, pattern) == expected


def test_walk_gives_relative_and_absolute_paths_sorted(workspace: Workspace, tree: Path) -> None:
    found = list(workspace.walk())
    assert [path for path, _ in found] == sorted(path for path, _ in found)
    assert [absolute for _, absolute in found] == [tree / path for path, _ in found]
    expected = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    assert {path for path, _ in found} == expected


def test_a_trailing_double_star_matches_all_files_below(workspace: Workspace, tree: Path) -> None:
    assert paths(workspace, "b/**") == ["b/a.txt", "b/a/a.txt"]
    assert paths(workspace, "**") == paths(workspace, "**/*")


def test_hidden_folders_are_left_out_unless_named(workspace: Workspace, root: Path) -> None:
    for path in (".git/config", ".github/flow/ci.yml", "docs/.cache/x.md", ".env", "docs/.hidden.md"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    assert paths(workspace) == [".env", "README.md", "docs/.hidden.md", "docs/deep/end.txt", "docs/guide.md"]
    assert paths(workspace, "*/config") == []
    assert paths(workspace, ".github/**/*.yml") == [".github/flow/ci.yml"]
    assert paths(workspace, ".g*/*") == [".git/config"]


def test_names_that_no_line_can_tell_are_left_out(workspace: Workspace, root: Path) -> None:
    for name in (b"bad\xff.txt", b"line\nbreak.txt", b"tab\t", b"bad\xff/x.txt"):
        path = os.path.join(os.fsencode(root), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8"):
            pass
    assert paths(workspace, "**/*.txt") == ["docs/deep/end.txt"]


def test_a_walk_says_when_it_sees_too_much(root: Path, observed: Observed) -> None:
    (root / "big").mkdir()
    for number in range(20):
        (root / "big" / f"{number}.txt").touch()
    assert len(paths(Workspace(root, observed, max_entries=26))) == 23  # and three folders
    with pytest.raises(AgentFailed, match=r"^more than 25 files and folders; narrow the pattern$"):
        paths(Workspace(root, observed, max_entries=25))
    # Only what can match is counted.
    assert paths(Workspace(root, observed, max_entries=6), "docs/*") == ["docs/guide.md"]


def test_a_tree_deeper_than_paths_are_long_ends(workspace: Workspace, root: Path) -> None:
    descriptor = os.open(root, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=descriptor)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(os.open("file", os.O_CREAT, dir_fd=descriptor))
    os.close(descriptor)
    assert paths(workspace) == ["README.md", "docs/deep/end.txt", "docs/guide.md"]


def test_a_workspace_that_is_gone_is_told(tmp_path: Path, observed: Observed) -> None:
    workspace = Workspace(tmp_path / "gone", observed)
    with pytest.raises(AgentFailed, match=r"^the workspace cannot be read: No such file or directory$"):
        paths(workspace)
    with pytest.raises(AgentFailed, match=r"^no such file in the workspace: a$"):
        workspace.read_text("a")


def test_the_root_itself_may_be_given_through_a_link(tmp_path: Path, root: Path, observed: Observed) -> None:
    (tmp_path / "alias").symlink_to(root)
    workspace = Workspace(tmp_path / "alias", observed)
    assert workspace.root == root
    assert workspace.read_text("README.md") == "# Hello\n"


IMPORT_AS_WORKERS_DO = """
import sys, executor_node.workspace, fanfold.anchors
import executor_node.agents.builtin.files, executor_node.agents.builtin.grep, executor_node.agents.builtin.idle
print(sorted({"pydantic", "yaml", "re2", "grpc", "google.protobuf"} & set(sys.modules)))
"""


@pytest.mark.process
def test_workers_load_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_AS_WORKERS_DO], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_any_number_of_double_stars_in_a_row_is_one(root: Path, workspace: Workspace) -> None:
    many = "/".join(["**"] * 1000)
    assert paths(workspace, f"{many}/*.md") == paths(workspace, "**/*.md") == ["README.md", "docs/guide.md"]
    assert paths(workspace, many) == paths(workspace, "**")
    assert paths(workspace, f"docs/{many}/end.txt") == ["docs/deep/end.txt"]


def test_a_pattern_has_a_bounded_number_of_parts(root: Path, workspace: Workspace) -> None:
    deepest = "/".join(["**", "*"] * (MAX_PATTERN_PARTS // 2))
    assert paths(workspace, deepest) == []
    with pytest.raises(AgentFailed, match="more than 64 parts"):
        paths(workspace, f"{deepest}/*")


@pytest.mark.contract("F1")
def test_a_walk_that_finds_nothing_is_stopped_all_the_same(root: Path, observed: Observed) -> None:
    answers = iter([False, False, True])
    workspace = Workspace(root, observed, is_stopped=lambda: next(answers))
    with pytest.raises(AgentFailed, match="stopped"):
        paths(workspace, "**/no-such-file")
