"""The columns of the output: what each is called, of which type, and what it means."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from concord.models.config import ConfigError
from concord.pipeline.output.schema import OFFSET_UNIT, SCHEMA_VERSION, SCHEMAS
from concord.workflows.console import Answer, indented, table


def run(name: str | None) -> Answer:
    """Describe one table, or all.

    Raises:
        ConfigError: for an unknown table.
    """
    if name is not None and name not in SCHEMAS:
        raise ConfigError(f"schema: expected one of {', '.join(SCHEMAS)}, got {name!r}")
    chosen = {key: schema for key, schema in SCHEMAS.items() if name in {None, key}}
    values = {
        "schema_version": SCHEMA_VERSION,
        "offset_unit": OFFSET_UNIT,
        "tables": {key: [_field_values(field) for field in schema] for key, schema in chosen.items()},
    }
    return Answer(values=values, text=_describe(values))


def _field_values(field: pa.Field) -> dict[str, Any]:
    description = (field.metadata or {}).get(b"description", b"").decode()
    return {"name": field.name, "type": str(field.type), "nullable": field.nullable, "description": description}


def _describe(values: Mapping[str, Any]) -> str:
    lines = [f"schema version {values['schema_version']}; offsets are {values['offset_unit']}"]
    for name, fields in values["tables"].items():
        rows = [(field["name"], f"{field['type']}{'?' * field['nullable']}", field["description"]) for field in fields]
        lines += ["", name, indented(table(rows))]
    return "\n".join([*lines, "", "? may be null"])
