"""What people and programs are told of a fan-out for some of whose steps there was no quota (C24, F8)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fanfold import SyncMesh
from support.command import fanfold, started, steps
from support.mesh import AGENTS

pytestmark = [pytest.mark.process, pytest.mark.contract("C24", "F8"), pytest.mark.timeout(120)]

STEPS = steps(("echo", "one"), ("lacks-quota", "no money"), ("echo", "three"))
WHY = "there was no quota for 1 step (s1: no money)"


def stage(context: Mapping[str, Any]) -> dict[str, str]:
    return {**STEPS[context["item"]], "task_id": "only"}


def test_a_run_without_quota_is_never_shown_as_completed(tmp_path: Path) -> None:
    with started(tmp_path, "--agents", str(AGENTS)) as up:
        shown = fanfold("parallel", "-", "--workflow-id", "w", server=up.server, text=json.dumps(STEPS))
        assert shown.returncode == 1
        assert shown.stderr.splitlines()[:2] == [
            f"The run has not completed: {WHY}.",
            "3 steps: 2 ok, 1 failed (QUOTA_EXHAUSTED)",
        ]
        printed = fanfold("parallel", "-", "--json", server=up.server, text=json.dumps(STEPS))
        assert (printed.returncode, json.loads(printed.stdout)["error"]) == (1, WHY)
        (listed,) = json.loads(fanfold("runs", "list", "--json", server=up.server).stdout)["runs"]
        assert (listed["state"], listed["reason"]) == ("failed", WHY)

        with SyncMesh(up.server, registry=up.address_of("job-registry")) as mesh:
            result = mesh.parallel(STEPS)
            assert ([each.output for each in result], result.error) == (["one", "", "three"], WHY)
            flow = mesh.pipeline([0, 1, 2], [stage])
            assert [each is not None and each.success for each in flow] == [True, False, True]
            assert flow.error == "there was no quota for 1 step (only: no money)"
            whole = mesh.parallel(STEPS[:1])
            assert ([each.output for each in whole], whole.error) == (["one"], "")
            run = mesh.start(STEPS)
            assert ([each.output for each in run.result()], run.result().error) == (["one", "", "three"], WHY)
            job = mesh.jobs.wait(run.id)
            assert (job.state, job.detail) == ("failed", f"3/3 steps, 1 failed: {WHY}")
