"""What a run leaves on disk, and how it is read back.

``DIR/<scenario>/<backend>/`` holds

=============== ==============================================================
result.json     scenario, backend, parameters, seed, versions, host,
                metrics {name: number}, checks [{name, ok, detail}], findings,
                bands [{column, start, end, label, where}],
                made {date, commit, command, duration_s, load, speed, drift,
                prediction_sha256}
rows.csv        tidy rows, one observation a line
timeline.json   Chrome's trace format; opens in Perfetto
=============== ==============================================================

The same rows give the same bytes: columns in order of first appearance,
``repr`` of floats, ``true``/``false``, nothing for None, lines end in LF.

Every file is written beside its place and renamed into it. ``result.json`` is
taken away first and put back last, so where it stands the other two belong to
it, and an interrupted run leaves no half of anything.

Reading gives each column one kind again: bool, number or text. A text column
whose every value looks like a number comes back as numbers.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from raytwin.scenarios.core.scenario import Band, Cell, Row

T = TypeVar("T")

LOAD_MAX = 0.25
"""Share of the cores that others may use before a measurement is called disturbed."""
SPREAD_MAX = 1.3
"""How many times as long the loads of one round of a calibration may take as those of another
before its machine is said to have changed meanwhile."""
DRIFT_MAX = 0.15
"""How far the processor's speed may be from that of the calibration, as a share of it, before a
prediction and a measurement are said to be of machines of different speeds."""
RESULT, ROWS, TIMELINE = "result.json", "rows.csv", "timeline.json"

_INT = re.compile(r"-?(0|[1-9]\d{0,17})\Z", re.ASCII)
_FLOAT = re.compile(r"-?\d{1,400}(\.\d{0,400})?(e[+-]?\d{1,4})?\Z", re.ASCII)


class ResultError(Exception):
    """A results directory that cannot be read or written; one line, names the file."""


class CheckRecord(msgspec.Struct):
    """A check and whether it held."""

    name: str
    ok: bool
    detail: str = ""


class Made(msgspec.Struct):
    """When, by what and how a result was made."""

    date: str
    """When it began: ISO 8601, UTC."""
    commit: str
    """Of raytwin, with ``+`` if files differ from it; empty where it is no repository."""
    command: str
    """What makes it again."""
    duration_s: float
    load: float
    """Share of the machine's cores that others had in use when it began."""
    speed: float = 0.0
    """How fast the processor was: the mean of a `measured_host.speed` before and one after. 0: it
    is of `sim`, or a version of raytwin has written it that did not look."""
    drift: float = 0.0
    """How much faster that is than during the calibration that predicts it, as a share; negative:
    slower. 0: the machine was not calibrated, or nobody looked."""
    prediction_sha256: str | None = None
    """Of a measurement: the SHA-256, in hexadecimal digits, of the ``result.json`` of ``sim`` that
    was beside it when it began; empty: there was none. None: it is of `sim`, or was not written
    beside others, or a version of raytwin has written it that did not look."""


class Record(msgspec.Struct):
    """``result.json``."""

    scenario: str
    backend: str
    parameters: dict[str, Any]
    seed: int
    versions: dict[str, str]
    host: dict[str, Any]
    metrics: dict[str, float]
    checks: list[CheckRecord]
    findings: list[str] = []
    bands: list[Band] = []
    made: Made | None = None
    """None: a version of raytwin has written it that did not keep it."""


class _Trace(msgspec.Struct):
    traceEvents: list[dict[str, Any]]
    displayTimeUnit: str = "ms"


@dataclass
class Result:
    """One run of one scenario on one backend, as kept on disk."""

    record: Record
    rows: list[Row]
    timeline: list[dict[str, Any]] = field(default_factory=list)
    sha256: str = field(default="", compare=False)
    """Of ``result.json``, in hexadecimal digits; empty: it was not read from one."""

    @property
    def name(self) -> str:
        """``<scenario>/<backend>``."""
        return f"{self.record.scenario}/{self.record.backend}"

    @property
    def ok(self) -> bool:
        """Whether every check held."""
        return all(check.ok for check in self.record.checks)


# -- writing ---------------------------------------------------------------------


def write(out: Path, result: Result) -> Path:
    """Write `result` below `out` and return its directory.

    Raises ResultError if that cannot be written, ValueError if the result
    holds what the format does not (a cell that is a list, NaN, ...).
    """
    rows = encode_rows(result.rows)
    timeline = encode_timeline(result.timeline)
    record = _json(result.record, indent=2)
    folder = out / result.record.scenario / result.record.backend
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULT).unlink(missing_ok=True)
        write_file(folder / ROWS, rows)
        write_file(folder / TIMELINE, timeline)
        write_file(folder / RESULT, record)
    except OSError as error:
        raise ResultError(f"cannot write {folder}: {error.strerror or error}") from error
    return folder


def sha256(out: Path, scenario: str, backend: str) -> str:
    """Return the SHA-256 of the ``result.json`` of an earlier result; empty if there is none.

    Raises ResultError, one line, if it cannot be read.
    """
    path = out / scenario / backend / RESULT
    return _sha256(_bytes(path)) if path.exists() else ""


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def encode_timeline(events: list[dict[str, Any]]) -> bytes:
    """Return events as a file of Chrome's trace format."""
    return _json(_Trace(events), indent=0)


def discard(out: Path, scenario: str, backend: str) -> None:
    """Forget an earlier result, if there is one."""
    for name in (RESULT, ROWS, TIMELINE):
        (out / scenario / backend / name).unlink(missing_ok=True)


def write_file(path: Path, content: bytes) -> None:
    """Put `content` at `path` as a whole or not at all. Raises OSError."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def encode_rows(rows: Sequence[Row]) -> bytes:
    """Return `rows` as CSV. Raises ValueError for a cell that has no form there."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    if not columns:
        return b""
    lines = [columns, *([_cell(row.get(name), name) for name in columns] for row in rows)]
    # an empty line would be no row, so a lone empty cell is quoted
    return "".join((",".join(map(_quoted, line)) or '""') + "\n" for line in lines).encode()


def _quoted(text: str) -> str:
    """Return `text` as a CSV cell; the csv module would leave a lone CR bare."""
    if any(mark in text for mark in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _cell(value: Any, column: str) -> str:
    value = _plain(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"column {column!r} holds {value}, which is no observation")
        return repr(value)
    if isinstance(value, int | str):
        return str(value)
    raise ValueError(f"column {column!r} holds a {type(value).__name__}")


def _plain(value: Any) -> Any:
    """Return a numpy scalar as the Python value that it is."""
    return value.item() if hasattr(value, "item") and hasattr(value, "dtype") else value


def _json(value: Any, indent: int) -> bytes:
    encoded = msgspec.json.encode(value, enc_hook=_json_hook)
    return msgspec.json.format(encoded, indent=indent) + b"\n" if indent else encoded


def _json_hook(value: Any) -> Any:
    plain = _plain(value)
    if plain is not value:
        return plain
    if isinstance(value, Path):
        return str(value)
    raise ValueError(f"a {type(value).__name__} has no place in a result")


# -- reading ---------------------------------------------------------------------


def read_all(out: Path, timelines: bool = False) -> list[Result]:
    """Return every result below `out`, ordered by scenario and backend.

    Raises ResultError if there is none, or one is incomplete, broken or not a
    result of this program. Timelines are read if they are wanted; see `read`.
    """
    if not out.is_dir():
        what = "is not a directory" if out.exists() else "does not exist"
        raise ResultError(f"{out} {what}: give the directory that 'raytwin run' wrote")
    found = [read(folder, timelines) for folder in _folders(out)]
    if not found:
        raise ResultError(f"{out} holds no results: 'raytwin run NAME --out {out}' makes some")
    return found


def _folders(out: Path) -> Iterator[Path]:
    try:
        for scenario in sorted(path for path in out.iterdir() if path.is_dir()):
            for backend in sorted(path for path in scenario.iterdir() if path.is_dir()):
                if any((backend / name).exists() for name in (RESULT, ROWS, TIMELINE)):
                    yield backend
    except OSError as error:
        raise ResultError(f"cannot read {out}: {error.strerror or error}") from error


def read(folder: Path, timeline: bool = True) -> Result:
    """Return the result in `folder`; without its timeline if that is not wanted.

    Raises ResultError, one line that names the file.
    """
    path = folder / RESULT
    content = _bytes(path)
    record = _decoded(content, path, Record)
    named = (record.scenario, record.backend)
    if named != (folder.parent.name, folder.name):
        raise ResultError(f"{path} is about {'/'.join(named)!r} and does not belong there")
    for metric, value in record.metrics.items():
        if not math.isfinite(value):
            raise ResultError(f"{path}: metric {metric!r} is {value}")
    rows = decode_rows(_bytes(folder / ROWS), folder / ROWS)
    events: list[dict[str, Any]] = []
    if timeline:
        path = folder / TIMELINE
        events = _decoded(_bytes(path), path, _Trace).traceEvents
    return Result(record, rows, events, _sha256(content))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ResultError(f"{path} is missing: run that scenario again") from None
    except OSError as error:
        raise ResultError(f"cannot read {path}: {error.strerror or error}") from error


def _decoded(content: bytes, path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ResultError(f"{path} is not what raytwin writes: {_line(error)}") from error


def decode_rows(content: bytes, path: Path) -> list[Row]:
    """Return the rows of a CSV; `path` is for the message of ResultError."""
    try:
        lines = list(csv.reader(io.StringIO(content.decode(), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ResultError(f"{path} is not what raytwin writes: {_line(error)}") from error
    if not lines:
        return []
    header, *body = lines
    if not header or len(set(header)) < len(header):
        raise ResultError(f"{path} is not what raytwin writes: line 1 names a column twice or none")
    for number, line in enumerate(body, start=2):
        if len(line) != len(header):
            raise ResultError(
                f"{path} is not what raytwin writes: row {number} has {len(line)} cells, "
                f"the header {len(header)}"
            )
    columns = [_column([line[index] for line in body]) for index in range(len(header))]
    return [dict(zip(header, cells, strict=True)) for cells in zip(*columns, strict=True)]


def _column(texts: list[str]) -> list[Cell]:
    given = [text for text in texts if text]
    if all(text in ("true", "false") for text in given):
        return [text == "true" if text else None for text in texts]
    numbers = {text: _number(text) for text in given}
    if None not in numbers.values():
        return [numbers[text] if text else None for text in texts]
    return [text or None for text in texts]


def _number(text: str) -> int | float | None:
    if _INT.match(text):
        return int(text)
    if _FLOAT.match(text) and math.isfinite(value := float(text)):
        return value
    return None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
