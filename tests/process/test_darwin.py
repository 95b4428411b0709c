"""What macOS would answer, read right. Its own calls can be tried on a Mac alone."""

from __future__ import annotations

import struct
import sys
from typing import Any

import pytest

from spoolctl.process import darwin, table
from spoolctl.process.table import MARK, Proc

PROC = Proc(7, "1", 1, 7, 7, "S", 1, False, "x")


def arguments(argc: int, *parts: bytes) -> bytes:
    """A KERN_PROCARGS2 block: count, path, padding, arguments, environment."""
    return struct.pack("=i", argc) + b"/bin/sh\0\0\0\0\0" + b"".join(part + b"\0" for part in parts)


@pytest.mark.parametrize(
    ("block", "marks"),
    [
        (arguments(1, b"sh", b"A=1", MARK.encode() + b"=a:b", b"B=2"), ("a", "b")),
        # An argument that looks like the variable is none.
        (arguments(2, b"env", MARK.encode() + b"=a", b"A=1"), ()),
        (arguments(2, b"sh", b"", MARK.encode() + b"=a"), ("a",)),
        (arguments(1, b"sh"), ()),
        (arguments(5, b"sh"), None),  # cut short
        (b"", None),
        (None, None),
    ],
)
def test_marks(
    monkeypatch: pytest.MonkeyPatch, block: bytes | None, marks: tuple[str, ...] | None
) -> None:
    monkeypatch.setattr(darwin, "_sysctl", lambda name: block)
    assert darwin.read_marks(PROC) == marks


def test_the_structure_has_its_size_in_the_systems_header() -> None:
    assert darwin._BSDINFO.size == 136


def test_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = darwin._BSDINFO.pack(
        *(0, 4, 0, 77, 1, 501, 20, 501, 20, 501, 20, 0, b"sleep", b"a long name", 0),
        *(70, 0, 0, 0, 0, 1_700_000_000, 250_000),
    )

    class System:
        def proc_pidinfo(self, _pid: Any, _what: Any, _arg: Any, buffer: Any, _size: Any) -> int:
            buffer.raw = packed
            return len(packed)

    monkeypatch.setattr(darwin, "_system", System())
    monkeypatch.setattr(darwin.os, "getsid", lambda pid: 60)
    assert darwin.read_proc(77) == Proc(77, "1700000000250000", 1, 70, 60, "T", 1, False, "sleep")


@pytest.mark.skipif(sys.platform != "darwin", reason="asks macOS itself")
def test_on_a_mac() -> None:
    import os

    me = table.read_proc(os.getpid())
    assert me is not None
    assert me.ppid == os.getppid()
    assert os.getpid() in table.read_all().procs
    assert darwin.boot_session()
    assert darwin.file_system_type("/") == "apfs"
