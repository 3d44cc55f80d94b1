"""`raytwin exec --backend sim`: an unchanged script sees virtual time, and is predicted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_S = 60.0

SLEEPING = """
import time
import ray

@ray.remote
def nap():
    time.sleep(5)

ray.init()
began = time.perf_counter()
ray.get([nap.remote() for _ in range(100)])
print(time.perf_counter() - began)
"""

CLOCKS = """
import asyncio, subprocess, threading, time
from random import random
from time import monotonic_ns, sleep
from timeit import default_timer
import ray

async def before():
    await asyncio.sleep(2)

began = time.time(), time.monotonic(), time.perf_counter(), default_timer(), monotonic_ns() / 1e9
sleep(3)
asyncio.run(before())
ray.init()
sleep(5)
ended = time.time(), time.monotonic(), time.perf_counter(), default_timer(), monotonic_ns() / 1e9
print("clocks", [round(b - a) for a, b in zip(began, ended)], ended)

@ray.remote
def napping(i):
    async def nap():
        await asyncio.sleep(1 + random())
        return i, random(), time.time_ns()
    return asyncio.run(nap())

@ray.remote
class Napper:
    async def nap(self):
        began = time.monotonic()
        await asyncio.sleep(7)
        return round(time.monotonic() - began)

@ray.remote
def waiting_for_a_real_process():
    began = time.monotonic()
    code = subprocess.run(["sleep", "0.3"], timeout=30).returncode
    return code, round(time.monotonic() - began)

async def main():
    began = time.monotonic()
    napper = Napper.remote()
    async def one(i):
        await asyncio.sleep(3)
        return await napping.remote(i)
    naps = await asyncio.gather(napper.nap.remote(), *[one(i) for i in range(4)])
    await asyncio.to_thread(time.sleep, 4)
    try:
        await asyncio.wait_for(asyncio.sleep(60), 5)
    except asyncio.TimeoutError:
        print("main", round(time.monotonic() - began), naps)

asyncio.run(main())
asyncio.get_event_loop().run_until_complete(main())
print("process", ray.get(waiting_for_a_real_process.remote()))
began = time.time()
while time.time() - began < 0.001:
    pass
threads = []
thread = threading.Thread(target=lambda: threads.append(time.time() - began))
thread.start()
thread.join()
print("another thread has real time", threads[0] > 1e6)
try:
    time.sleep(-1)
except ValueError as error:
    print(error)
"""


def run(
    folder: Path, script: str, *options: str, hash_seed: str = "0"
) -> tuple[int, list[str], list[str]]:
    """Run a script on sim; return (exit code, lines of standard output, of standard error)."""
    path = folder / "script.py"
    path.write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "raytwin", "exec", "--backend", "sim", *options, str(path)],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


@pytest.mark.parametrize("cost", ["declared", "measured"])
def test_tasks_that_sleep_take_virtual_time_and_hold_their_cpus(tmp_path: Path, cost: str) -> None:
    # 500 s of sleep: within the time limit only if it does not pass here.
    options = ("--nodes", "2", "--cpus-per-node", "2", "--cost", cost)
    code, out, err = run(tmp_path, SLEEPING, *options)
    assert code == 0, err
    at_best_s = 100 * 5 / 4
    assert at_best_s <= float(out[0]) <= 1.1 * at_best_s
    assert err[0].startswith("raytwin: predicted makespan 12")
    assert "100 tasks and calls on 2 nodes with 4 CPUs, profile paper" in err[0]
    assert err[-1] == "raytwin: saturated: the nodes' CPUs, which tasks and actors reserve"


def test_all_clocks_of_a_program_are_virtual_and_agree_and_declared_costs_are_the_same_in_each_run(
    tmp_path: Path,
) -> None:
    options = ("--cost", "declared", "--seed", "7")
    code, out, err = run(tmp_path, CLOCKS, *options)
    assert code == 0, err
    assert out[0].startswith("clocks [10, 10, 10, 10, 10]")
    assert [line.split(" [")[0] for line in out[1:3]] == ["main 16"] * 2
    assert "[7, (0, " in out[1]
    assert out[3:] == [
        "process (0, 0)",
        "another thread has real time True",
        "sleep length must be non-negative",
    ]
    draws = {part for line in out[1:3] for part in line.split(", ") if part.startswith("0.")}
    assert len(draws) == 8, "tasks on two workers have drawn the same number"
    assert run(tmp_path, CLOCKS, *options, hash_seed="1") == (code, out, err)


def test_a_loop_that_nothing_can_wake_raises(tmp_path: Path) -> None:
    script = "import asyncio\nasyncio.run(asyncio.Event().wait())"
    code, out, err = run(tmp_path, script)
    assert (code, out) == (1, [])
    assert err[-1].endswith("nothing will ever wake it: no cluster is connected")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--cost", "measurd", "--backend", "sim"], "did you mean 'measured'?"),
        (["--cost", "declared"], "--cost is for what is simulated: give --backend sim"),
        (["--profile", "paper", "--backend", "local"], "--profile is for what is simulated"),
        (["--profile", "none", "--backend", "sim"], "no profile 'none'"),
        (["--nodes-per-host", "2"], "--nodes-per-host is for what is simulated"),
        (["--host-speeds", "1,1"], "--host-speeds is for what is simulated"),
        (["--oversubscription", "2", "--backend", "sim"], "give --hosts-per-rack"),
        (["--host-speeds", "1,fast", "--backend", "sim"], "a number above 0 for each machine"),
        (["--host-speeds", "1,0", "--backend", "sim"], "a number above 0 for each machine"),
    ],
)
def test_bad_options_of_a_prediction_get_one_line(options: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "raytwin", "exec", *options, "x.py"],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_racks_and_slow_machines_are_predicted(tmp_path: Path) -> None:
    script = """
import ray, raytwin, time
ray.init()

@ray.remote
def make():
    raytwin.compute(0.1)
    return raytwin.Blob(500_000_000)

@ray.remote
def take(value):
    return value.nbytes

began = time.perf_counter()
on = [{"resources": {f"node:{node}": 0.1}} for node in range(4)]
made = [make.options(**on[node]).remote() for node in (0, 1)]
ray.get([take.options(**on[2 + number]).remote(ref) for number, ref in enumerate(made)])
print(time.perf_counter() - began)
"""

    def took_s(*options: str) -> float:
        given = ["--nodes", "4", "--cost", "declared", *options]
        code, (took,), err = run(tmp_path, script, *given)
        assert code == 0, err
        return float(took)

    alone_s = took_s()
    # Two transfers share an uplink that is as fast as half of one of its two machines.
    racks = ["--hosts-per-rack", "2", "--oversubscription", "4"]
    assert took_s(*racks) == pytest.approx(alone_s + 3 * 500_000_000 / 3.125e9, rel=0.05)
    assert took_s("--host-speeds", "0.1,1,1,1") > alone_s + 0.8


def test_what_the_driver_computes_after_its_last_call_counts(tmp_path: Path) -> None:
    """As it counts before another call: the two makespans differ by that call alone."""
    script = """
import ray, time
@ray.remote
def f():
    time.sleep(0.1)
ray.get(f.remote())
began = time.process_time()
while time.process_time() - began < 0.5:
    pass
"""
    found = []
    for more in ("", "ray.get(f.remote())"):
        code, _, err = run(tmp_path, script + more)
        assert code == 0, err
        (line,) = [line for line in err if "predicted makespan" in line]
        found.append(float(line.split("makespan ")[1].split()[0]))
    assert found[0] > 0.5
    assert found[1] > found[0]
