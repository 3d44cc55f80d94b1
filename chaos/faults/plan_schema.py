"""The JSON schema of fault plans, with which editors complete and check them.

`plan.schema.json` is this module's output, held to it by a test; `python -m
raytwin.chaos.faults.plan_schema` writes it anew, and `raytwin plan --schema` prints it. A YAML file
names it in its first line, ``# yaml-language-server: $schema=plan.schema.json``, and a JSON file by
the key ``$schema``. It cannot say that a step is ``after`` one that there is, and does not say
which kinds of messages there are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from raytwin.chaos.faults.actions import ACTIONS, Action
from raytwin.chaos.faults.plan import EVENT, NAME, SCHEMA_KEY
from raytwin.chaos.faults.targets import TARGETS

FILE = Path(__file__).with_name("plan.schema.json")
AMOUNT = {"type": "number", "minimum": 0}


def schema() -> dict[str, Any]:
    """Return the schema of a plan."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "raytwin fault plan",
        "type": "object",
        "required": ["steps"],
        "additionalProperties": False,
        "properties": {
            SCHEMA_KEY: {"type": "string", "description": "Where this schema is."},
            "steps": {"type": "array", "items": _step()},
            "expect": {"type": "array", "items": _expectation()},
        },
    }


def _step() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["action", "target"],
        "additionalProperties": False,
        "oneOf": [{"required": ["at_s"]}, {"required": ["after"]}],
        "dependencies": {"delay_s": ["after"]},
        "properties": {
            "name": {
                "type": "string",
                "pattern": f"^({NAME})?$",
                "description": "For steps that come after this one.",
            },
            "at_s": {**AMOUNT, "description": "Seconds since the plan was applied."},
            "after": {
                "type": "string",
                "pattern": f"^({EVENT}|{NAME})$",
                "description": "node_added:1, node_died:1, or the name of another step.",
            },
            "delay_s": {**AMOUNT, "description": "Seconds after that event."},
            "action": {"enum": list(ACTIONS)},
            "target": {
                "type": "string",
                "pattern": f"^({'|'.join(target.pattern for target in TARGETS.values())})$",
                "not": {
                    "anyOf": [
                        {"pattern": never} for target in TARGETS.values() for never in target.never
                    ]
                },
                "description": ", ".join(target.form for target in TARGETS.values()),
            },
            "parameters": {"type": "object"},
        },
        "allOf": [
            {
                "if": {"properties": {"action": {"const": name}}},
                "then": _of_action(name, action),
            }
            for name, action in ACTIONS.items()
        ],
    }


def _of_action(name: str, action: Action) -> dict[str, Any]:
    """Return the schema of a step with one action: its targets and parameters."""
    targets = [target.pattern for target in TARGETS.values() if name in target.operations]
    required = [key for key, parameter in action.parameters.items() if parameter.required]
    parameters: dict[str, Any] = {
        "additionalProperties": False,
        "properties": {
            key: {**parameter.schema, "description": parameter.form}
            for key, parameter in action.parameters.items()
        },
    }
    if required:
        parameters["required"] = required
    return {
        **({"required": ["parameters"]} if required else {}),
        "properties": {
            "target": {"pattern": f"^({'|'.join(targets)})$"},
            "parameters": parameters,
        },
    }


def _expectation() -> dict[str, Any]:
    bounds = ("min", "max", "equals")
    return {
        "type": "object",
        "required": ["metric"],
        "additionalProperties": False,
        "anyOf": [{"required": [bound]} for bound in bounds],
        "properties": {
            "metric": {"type": "string", "minLength": 1, "description": "The name of a metric."},
            **{bound: {"type": "number"} for bound in bounds},
            "relative_to": {
                "type": "string",
                "description": "A metric whose value multiplies the bounds.",
            },
        },
    }


def text() -> str:
    """Return the content of the schema's file."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
