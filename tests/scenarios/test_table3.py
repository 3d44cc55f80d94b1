"""Table 3: an actor that serves a policy, predicted and measured, beside a web service and Ray."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raytwin.scenarios.applications.serving import Asked, Workload
from raytwin.scenarios.core.scenario import Outcome, Request
from raytwin.scenarios.figures import table3
from raytwin.scenarios.peers import PeerError, http_serving, ray_serving, times_alone
from raytwin.scenarios.peers.companion import Companion
from tests.requirements import require

SHORT = {"repeats": "1", "round_s": "0.1"}


class Told:
    """A `Progress` that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, label: str, total: float | None = None) -> None: ...

    def advance(self, amount: float = 1.0) -> None: ...

    def say(self, text: str) -> None:
        self.lines.append(text)


def request(backend: str, **given: str) -> Request:
    return Request(backend, settings=table3.SCENARIO.settings("quick", {**SHORT, **given}))


def systems(outcome: Outcome) -> set[str]:
    return {row["system"] for row in outcome.rows}


def check(outcome: Outcome, words: str) -> bool:
    """Return whether the one check held that has these words in its name."""
    (found,) = [each for each in outcome.checks if words in each.name]
    return found.ok


def test_an_actor_is_predicted_to_serve_at_nearly_the_rate_of_its_model() -> None:
    outcomes = [table3.run(request("sim")) for _ in range(2)]
    assert outcomes[0].rows == outcomes[1].rows
    assert all(each.ok for each in outcomes[0].checks), outcomes[0].checks
    assert systems(outcomes[0]) == {table3.ACTOR}, "what a peer costs is not made up"
    for row in outcomes[0].rows:
        model = table3.STATES / row["model_ms"] * 1e3
        assert 0.9 * model < row["states_per_s"] < model


def test_an_actor_of_this_machine_takes_its_time_to_read_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken_s = {4_000: 0.0, 100_000: 0.005}  # as long as the model's
    monkeypatch.setattr(
        times_alone, "measured", lambda function, states, state_bytes: [taken_s[state_bytes]]
    )
    outcome = table3.run(dataclasses.replace(request("sim"), profile=Path("paper")))
    for row in outcome.rows:
        of_host = row["series"] == table3.HOST
        batch_s = row["model_ms"] / 1e3 + (taken_s[row["state_bytes"]] if of_host else 0.0)
        assert 0.9 * table3.STATES < row["states_per_s"] * batch_s < table3.STATES, row
    assert {row["series"] for row in outcome.rows} == {table3.PAPER, table3.HOST}


def test_one_client_waits_for_more_than_the_model() -> None:
    """A copy of 6.4 MB takes time, which a second client hides."""
    rates = [
        table3.run(request("sim", clients=clients)).metrics["states_per_s_actor_100_kb"]
        for clients in ("1", "2")
    ]
    assert rates[0] < 0.95 * rates[1]


def test_a_web_service_is_measured_beside_the_actor() -> None:
    require("peers", not http_serving.missing(), http_serving.missing())
    outcome = table3.run(request("local"))
    assert systems(outcome) == {table3.ACTOR, http_serving.JSON, http_serving.RAW}
    assert len(outcome.rows) == 3 * len(table3.WORKLOADS)
    assert all(each.ok for each in outcome.checks), outcome.checks
    assert outcome.metrics["actor_to_fastapi_json_100_kb"] > 1.0


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_ray_and_ray_serve_are_measured_beside_the_actor() -> None:
    for system in ray_serving.NEEDED:
        require("ray", not ray_serving.missing(system), ray_serving.missing(system))
    outcome = table3.run(request("local", peers="ray"))
    assert systems(outcome) == {table3.ACTOR, ray_serving.ACTOR, ray_serving.SERVE}
    assert all(each.ok for each in outcome.checks), outcome.checks
    assert outcome.metrics["actor_to_ray_serve_100_kb"] > 0.0


def test_a_peer_that_is_not_installed_is_said_in_one_line_and_has_no_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = importlib.util.find_spec
    gone = ("uvicorn", "ray")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in gone else found(name)
    )
    told = Told()
    asked = dataclasses.replace(request("local", peers="fastapi,ray"), progress=told)
    outcome = table3.run(asked)
    assert systems(outcome) == {table3.ACTOR}
    assert told.lines == [
        "FastAPI is not measured: no uvicorn (pip install 'raytwin[peers]')",
        "Ray actor is not measured: no ray (pip install 'raytwin[ray]')",
        "Ray Serve is not measured: no ray and no uvicorn (pip install 'raytwin[serve]')",
    ]
    assert not any("web service" in each.name for each in outcome.checks)
    assert all(each.ok for each in outcome.checks), outcome.checks


@contextmanager
def _wrong(*_: Any) -> Iterator[dict[str, table3.Ask]]:
    """Serve at once, and the actions of others."""

    def ask(workload: Workload, batches: int) -> list[Asked]:
        return [Asked(0.0, 1e-6 * batches, batches, [0.0] * table3.STATES)]

    yield {table3.ACTOR: ask}


def test_wrong_actions_and_a_model_that_did_not_run_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table3, "_actor", _wrong)
    monkeypatch.setattr(table3.run_trace, "kept", lambda run: [])
    outcome = table3.run(request("sim"))
    assert not check(outcome, "actions for its own states")
    assert not check(outcome, "faster than the model")
    assert not check(outcome, "within 10%")


def test_a_web_service_that_refuses_is_an_error_of_one_line() -> None:
    require("peers", not http_serving.missing(), http_serving.missing())
    with (
        Companion("raytwin.scenarios.peers.http_service") as service,
        Companion("raytwin.scenarios.peers.http_client", str(service.receive())) as client,
    ):
        with pytest.raises(PeerError) as caught:
            client.ask(form="json", workload=Workload(4, -1.0), client=0, batches=1)
        assert "http_client: RuntimeError: status 422" in str(caught.value)
        assert "\n" not in str(caught.value)
        # It goes on.
        workload = Workload(4, 0.0)
        assert client.ask(form="json", workload=workload, client=0, batches=2)[2] == 2
