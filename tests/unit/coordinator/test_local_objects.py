from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from coordinator.journal.payloads import LocalObjects, PayloadLost, Reference


def names(store: LocalObjects, prefix: str) -> set[str]:
    return {name for name, _ in store.list(prefix)}


def test_what_was_put_is_got_in_parts_until_it_is_deleted(tmp_path: Path) -> None:
    store = LocalObjects(tmp_path / "objects")
    store.put("j/ab/abc", b"0123456789")
    store.put("j/ab/abd", b"")
    assert store.get("j/ab/abc", 0, 10) == b"0123456789"
    assert store.get("j/ab/abc", 3, 4) == b"3456"
    assert store.get("j/ab/abd", 0, 0) == b""
    store.delete(["j/ab/abc", "j/ab/not-there"])
    with pytest.raises(FileNotFoundError):
        store.get("j/ab/abc", 0, 10)
    assert names(store, "j") == {"j/ab/abd"}


def test_another_store_on_the_directory_has_the_same(tmp_path: Path) -> None:
    LocalObjects(tmp_path).put("j/a/b", b"kept")
    assert LocalObjects(tmp_path).get("j/a/b", 0, 4) == b"kept"


def test_a_list_tells_names_below_a_prefix_with_their_age(tmp_path: Path) -> None:
    store = LocalObjects(tmp_path / "objects")
    assert names(store, "j") == set()
    for name in ("j/a/1", "j/b/2", "other/a/3", "jj/a/4"):
        store.put(name, b"x")
    os.utime(tmp_path / "objects/j/a/1", (0, 0))
    ages = dict(store.list("j"))
    assert set(ages) == {"j/a/1", "j/b/2"}
    assert ages["j/a/1"] > 10**9
    assert -1 < ages["j/b/2"] < 60


def test_only_this_user_can_read_objects(tmp_path: Path) -> None:
    store = LocalObjects(tmp_path / "objects")
    store.put("j/a/1", b"x")
    assert stat.S_IMODE((tmp_path / "objects/j/a/1").stat().st_mode) == 0o600
    for folder in ("objects", "objects/j", "objects/j/a"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o700


def test_a_put_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = LocalObjects(tmp_path)
    (tmp_path / "j/a/1").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        store.put("j/a/1", b"x")
    assert names(store, "j") == set()


def test_puts_at_the_same_time_make_their_folders_once(tmp_path: Path) -> None:
    store = LocalObjects(tmp_path / "objects")
    barrier = threading.Barrier(8)

    def put(number: int) -> None:
        barrier.wait()
        store.put(f"j/{number % 2}/{number}", b"%d" % number)

    threads = [threading.Thread(target=put, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(store, "j") == {f"j/{number % 2}/{number}" for number in range(8)}


@pytest.mark.contract("F11")
def test_a_payload_that_is_not_as_it_was_is_lost(tmp_path: Path) -> None:
    store = LocalObjects(tmp_path)
    store.put("j/a/1", b"firstsecond")
    first, second = Reference.to(b"first", 0), Reference.to(b"second", 5)
    assert (first.fetch(store, "j/a/1"), second.fetch(store, "j/a/1")) == (b"first", b"second")
    (tmp_path / "j/a/1").write_bytes(b"firstsecund")
    assert first.fetch(store, "j/a/1") == b"first"
    with pytest.raises(PayloadLost, match="not as it was"):
        second.fetch(store, "j/a/1")
    (tmp_path / "j/a/1").write_bytes(b"firstsecon")
    with pytest.raises(PayloadLost, match="not as it was"):
        second.fetch(store, "j/a/1")
    store.delete(["j/a/1"])
    with pytest.raises(PayloadLost, match="missing"):
        first.fetch(store, "j/a/1")
