"""Agents whose functions are in a package that is installed beside fanfold, in an environment of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from support.command import fanfold, started, steps

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

PROJECT = Path(__file__).parent.parent.parent
MODULE = """\
def shout(spec, context):
    return spec.prompt.upper()

async def whisper(spec, context):
    return spec.prompt.lower()

def stumble(spec, context):
    raise LookupError(spec.prompt)
"""
METADATA = "Metadata-Version: 2.1\nName: voices\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
AGENT = "---\nname: {name}\ndescription: for tests\nkind: python\nentry: voices.loud:{name}\n{more}---\n"
SHARED = "isolation: shared\nidempotent: true\n"


def wheel(folder: Path) -> Path:
    """A package with a module in it, as it is handed out."""
    path = folder / "voices-1.0-py3-none-any.whl"
    files = {"voices/__init__.py": "", "voices/loud.py": MODULE}
    files |= {"voices-1.0.dist-info/METADATA": METADATA, "voices-1.0.dist-info/WHEEL": WHEEL}
    record = "".join(f"{name},,\n" for name in (*files, "voices-1.0.dist-info/RECORD"))
    with ZipFile(path, "w") as archive:
        for name, text in (files | {"voices-1.0.dist-info/RECORD": record}).items():
            archive.writestr(name, text)
    return path


def environment_with(package: Path, folder: Path) -> str:
    """The Python of a new environment that has all that this one has, and the package."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "all-else.pth").write_text(f"{sysconfig.get_path('purelib')}\n{PROJECT}\n")
    install = ["install", "--quiet", "--no-index", "--no-deps", str(package)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True)
    return str(python)


def test_an_entry_is_found_in_an_installed_package(tmp_path: Path) -> None:
    python = environment_with(wheel(tmp_path), tmp_path / "environment")
    agents = tmp_path / "agents"
    agents.mkdir()
    for name, more in {"shout": "", "whisper": SHARED, "stumble": ""}.items():
        (agents / f"{name}.md").write_text(AGENT.format(name=name, more=more))
    asked = steps(("shout", "Hello"), ("whisper", "Hello"), ("stumble", "where?"))
    with started(tmp_path, "--agents", str(agents), python=python) as up:
        told = fanfold("parallel", "-", "--json", server=up.server, text=json.dumps(asked))
    shout, whisper, stumble = json.loads(told.stdout)["outcomes"]
    assert (shout["output"], whisper["output"]) == ("HELLO", "hello")
    assert stumble["failure"]["message"] == "LookupError: where? (voices/loud.py:8)"
