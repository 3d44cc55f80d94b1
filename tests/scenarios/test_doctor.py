"""The doctor tries things, and its trials can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from raytwin.scenarios.cli import doctor


def test_failed_program_is_a_finding_with_its_last_line() -> None:
    trial = doctor._run("import sys; print('a\\nthe reason', file=sys.stderr); sys.exit(3)")
    finding = doctor._try("thing", "sim", trial, "mend it")
    assert (finding.ok, finding.detail, finding.fix) == (False, "the reason", "mend it")


def test_crash_is_a_finding() -> None:
    finding = doctor._try("thing", "sim", doctor._run("import os; os.abort()"), "mend it")
    assert not finding.ok
    assert finding.detail


def test_browsers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYTWIN_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr(doctor, "BROWSERS", ("absent-browser", "some-browser"))
    with pytest.raises(doctor.Missing, match="absent-browser"):
        doctor._chromium()
    browser = tmp_path / "some-browser"
    browser.write_text("#!/bin/sh\necho version 7\n")
    browser.chmod(0o755)
    assert doctor._chromium().endswith("some-browser, version 7")
    browser.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(doctor.Missing, match="does not start"):
        doctor._chromium()


def test_healthy_needs_both_backends_and_nothing_else() -> None:
    def finding(ok: bool, needed_for: str) -> doctor.Finding:
        return doctor.Finding("", ok, needed_for, "")

    good = [finding(True, "sim"), finding(True, "local"), finding(True, "sim, local")]
    assert doctor.healthy([*good, finding(False, "browser tests")])
    for needed_for in ("sim", "local", "sim, local"):
        assert not doctor.healthy([*good, finding(False, needed_for)])


def test_the_toxiproxy_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = tmp_path / "server"
    monkeypatch.setenv("TOXIPROXY_SERVER", str(server))
    with pytest.raises(doctor.Missing, match="TOXIPROXY_SERVER names no program"):
        doctor._toxiproxy()
    with monkeypatch.context() as without:
        without.delenv("TOXIPROXY_SERVER")
        for name in ("PATH", "GOBIN"):
            without.setenv(name, str(tmp_path / "nothing"))
        with pytest.raises(doctor.Missing, match=r"python -m raytwin\.chaos\.toxiproxy"):
            doctor._toxiproxy()
    server.write_text("#!/bin/sh\necho version 7\n")
    server.chmod(0o755)
    assert doctor._toxiproxy() == f"{server}, version 7"
