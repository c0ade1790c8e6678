"""Generates `fanfold/v1` from the protos, and checks that it and the frozen API still fit them.

python -m tools.protos generate    write fanfold/v1
python -m tools.protos check       compare fanfold/v1 and the frozen API with the protos
python -m tools.protos freeze      declare the implemented RPCs to be the API that later changes must not break
"""

from __future__ import annotations

import filecmp
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROTOS = ROOT / "protos"
GENERATED = ROOT / "fanfold" / "v1"
FROZEN = PROTOS / "api.json"

IMPLEMENTED = [
    *(
        f"fanfold.v1.Coordinator.{name}"
        for name in (
            "Run",
            "RunPipeline",
            "StartRun",
            "GetRun",
            "ListRuns",
            "WatchRun",
            "CancelRun",
            "DisposeRun",
            "GetCheckpoint",
            "PutCheckpoint",
            "ExecuteStep",
            "AnnounceNode",
            "ListNodes",
            "WatchNodes",
        )
    ),
    *(f"fanfold.v1.ExecutorNode.{name}" for name in ("DescribeNode", "WatchNode", "ExecuteStep", "Link")),
    *(
        f"fanfold.v1.JobRegistry.{name}"
        for name in (
            "ProduceJob",
            "GetJob",
            "ListJobs",
            "WatchJobs",
            "WaitJob",
            "ReadJobOutput",
            "GetJobResult",
            "CancelJob",
            "DeleteJob",
        )
    ),
]
"""RPCs that do what they say. What still answers UNIMPLEMENTED is not frozen and may change."""


def main(arguments: list[str]) -> int:
    """Do what the first argument says; returns the exit code."""
    match arguments:
        case ["generate"]:
            generate(ROOT)
            return 0
        case ["check"]:
            return max(check_generated(), check_frozen())
        case ["freeze"]:
            build_image(FROZEN)
            return 0
        case _:
            print(__doc__, file=sys.stderr)
            return 2


def generate(target: Path) -> None:
    """Write the generated code below `target`."""
    protos = sorted(PROTOS.glob("fanfold/v1/*.proto"))
    services = [proto for proto in protos if "\nservice " in proto.read_text()]
    _protoc(target, protos, "--python_out", "--mypy_out")
    _protoc(target, services, "--grpc_python_out", "--mypy_grpc_out")


def check_generated() -> int:
    """1 and a message unless fanfold/v1 is what the protos give."""
    with tempfile.TemporaryDirectory() as directory:
        generate(Path(directory))
        fresh = Path(directory) / "fanfold" / "v1"
        names = {path.name for path in fresh.iterdir()}
        stale = {path.name for path in GENERATED.glob("*_pb2*")} - names
        _, changed, missing = filecmp.cmpfiles(fresh, GENERATED, names, shallow=False)
        wrong = sorted({*stale, *changed, *missing})
    if wrong:
        print(f"fanfold/v1 does not fit the protos, run `make protos`: {', '.join(wrong)}", file=sys.stderr)
    return int(bool(wrong))


def check_frozen() -> int:
    """1 and buf's messages if the protos break what was frozen."""
    return int(_buf("breaking", "--against", str(FROZEN)).returncode != 0)


def build_image(target: Path) -> None:
    """Write the image of the implemented API."""
    types = [word for name in IMPLEMENTED for word in ("--type", name)]
    _buf("build", "--exclude-source-info", *types, "--output", str(target)).check_returncode()


def _protoc(target: Path, protos: list[Path], *outputs: str) -> None:
    scripts = sysconfig.get_path("scripts")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTOS}"]
    command += [f"{output}={'quiet:' if 'mypy' in output else ''}{target}" for output in outputs]
    environment = {"PATH": f"{scripts}:/usr/bin:/bin"}  # where the mypy plug-ins are
    subprocess.run([*command, *map(str, protos)], check=True, env=environment)


def _buf(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([Path(sysconfig.get_path("scripts")) / "buf", *arguments], cwd=PROTOS, check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
