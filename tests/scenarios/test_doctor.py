"""The doctor tries things, and its trials can fail."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from raytwin.scenarios.cli import doctor


@pytest.mark.parametrize("source", [doctor._MEMFD, doctor._DESCRIPTORS])
def test_system_trials_work_here(source: str) -> None:
    assert doctor._run(source)()


def test_failed_program_is_a_finding_with_its_last_line() -> None:
    trial = doctor._run("import sys; print('a\\nthe reason', file=sys.stderr); sys.exit(3)")
    finding = doctor._try("thing", "sim", trial, "mend it")
    assert (finding.ok, finding.detail, finding.fix) == (False, "the reason", "mend it")


def test_crash_is_a_finding() -> None:
    finding = doctor._try("thing", "sim", doctor._run("import os; os.abort()"), "mend it")
    assert not finding.ok
    assert finding.detail


def test_no_engine_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent.sock")
    with pytest.raises(doctor.Missing, match=r"absent\.sock"):
        doctor._run(doctor._DOCKER)()


def test_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "some-tool"
    tool.write_text("#!/bin/sh\necho version 7\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert shutil.which("some-tool")
    assert doctor._tool("absent-tool", "some-tool").endswith("some-tool, version 7")
    with pytest.raises(doctor.Missing, match="absent-tool"):
        doctor._tool("absent-tool")
    tool.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(doctor.Missing, match="does not start"):
        doctor._tool("some-tool")


def test_healthy_needs_both_backends_and_nothing_else() -> None:
    def finding(ok: bool, needed_for: str) -> doctor.Finding:
        return doctor.Finding("", ok, needed_for, "")

    good = [finding(True, "sim"), finding(True, "local"), finding(True, "sim, local")]
    assert doctor.healthy([*good, finding(False, "browser tests")])
    for needed_for in ("sim", "local", "sim, local"):
        assert not doctor.healthy([*good, finding(False, needed_for)])
