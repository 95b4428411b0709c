"""Small libraries in C that change what the C library tells one process (LD_PRELOAD)."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


@functools.cache
def compiler() -> str | None:
    """A C compiler, where there is one, on a system whose programs can be interposed on."""
    return shutil.which("gcc") or shutil.which("cc") if sys.platform == "linux" else None


def build(name: str, folder: Path) -> Path:
    """Compile `name`.c to a library in `folder`."""
    library = folder / f"{name}.so"
    if not library.exists():
        command = [str(compiler()), "-shared", "-fPIC", "-O1", "-Wall", "-o"]
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch, library.name)
            subprocess.run([*command, str(made), str(HERE / f"{name}.c"), "-ldl"], check=True)
            made.rename(library)
    return library
