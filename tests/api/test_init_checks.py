"""`init` checks its arguments before anything starts, alike on both backends."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import raytwin as ray


@pytest.mark.parametrize("backend", ["local", "sim"])
def test_init_names_the_wrong_argument(backend: str) -> None:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"namespace": 5}, TypeError, "namespace is a string, not 5"),
        ({"namespace": ""}, ValueError, "a namespace is not empty"),
        ({"seed": "a"}, TypeError, "seed is an integer, not 'a'"),
        ({"seed": 2**80}, ValueError, "seed is at most"),
        ({"num_cpus": "2"}, TypeError, "num_cpus is a number, not '2'"),
        ({"resources": [1]}, TypeError, "resources is a dict of amounts"),
        ({"nodes": [{"CPU": "x"}]}, TypeError, r"'CPU' in nodes\[0\] is a number, not 'x'"),
        ({"nodes": 2.5}, TypeError, "nodes is an integer, not 2.5"),
        ({"nodes": "a"}, TypeError, "nodes is "),
        ({"nodes": [3]}, TypeError, "nodes"),
        ({"nodes": [{1: 1}]}, TypeError, "is a string, not 1"),
        ({"num_gpus": "x"}, TypeError, "num_gpus is a number, not 'x'"),
        ({"heartbeat_timeout_s": "1"}, TypeError, "heartbeat_timeout_s is a number"),
        ({"heartbeat_timeout_s": float("nan")}, ValueError, "heartbeat_timeout_s is a finite"),
        ({"object_store_memory": "1G"}, TypeError, "object_store_memory is a number"),
        ({"runtime_env": {"env_vars": {"A=": "3"}}}, ValueError, "cannot be the name"),
        ({"runtime_env": {"env_vars": {"A": "\0"}}}, ValueError, "null character"),
    ]
    for options, error, said in wrong:
        with pytest.raises(error, match=said):
            ray.init(backend=backend, **options)
        assert not ray.is_initialized()


def test_a_store_that_has_no_addresses_is_refused() -> None:
    for nbytes in (1 << 47, 10**19, 10**30):
        with pytest.raises(ValueError, match="16 TiB is the most"):
            ray.init(backend="local", nodes=1, cpus_per_node=1, object_store_memory=nbytes)
        assert not ray.is_initialized()


@pytest.mark.parametrize("backend", ["local", "sim"])
def test_a_program_may_be_called_anything(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setattr(sys, "argv", ["a file's name \udcff"])
    with ray.init(backend=backend, nodes=1, cpus_per_node=1) as session:
        (job,) = session.query("jobs")
        assert job[4] == ("a file's name \\udcff" if backend == "local" else "")


@pytest.mark.parametrize("backend", ["local", "sim"])
def test_queries_of_a_session_are_checked(backend: str) -> None:
    with ray.init(backend=backend, nodes=1, cpus_per_node=1) as session:
        asked: list[tuple[Any, str]] = [
            (lambda: session.query(5), "a query is a string, not 5"),
            (lambda: session.kv_put("key", b"value"), "a key is bytes, not 'key'"),
            (lambda: session.kv_put(b"key", 3), "a value is bytes, not 3"),
            (lambda: session.kv_get("key"), "a key is bytes"),
            (lambda: session.find_task("id"), "an object's ID is bytes"),
            (lambda: session.cluster.add_node({"CPU": "1"}), "'CPU' in .* is a number, not '1'"),
        ]
        for call, said in asked:
            with pytest.raises(TypeError, match=said):
                call()
        with pytest.raises(ValueError, match="not a multiple"):
            session.cluster.add_node({"CPU": 0.00001})
        assert session.kv_put(b"key", bytearray(b"value")) is None
        assert session.kv_get(b"key") == b"value"
