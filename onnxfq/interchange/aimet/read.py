"""Reader of AIMET's encodings files, versions 0.6.1, 1.0.0, 2.0.0 and 2.1.0, as its exporters write them.

Source: AIMET's encoding format specification (Docs/techniques/encoding_spec.rst, Qualcomm).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnxfq.interchange.aimet.fields import Entry, field
from onnxfq.interchange.aimet.v0_v1 import read_0_6_1, read_1_0_0
from onnxfq.interchange.aimet.v2 import read_2
from onnxfq.interchange.external import Given, Reading

_SECTIONS = ("activation_encodings", "param_encodings")


def is_aimet(content: object) -> bool:
    """Tell whether a JSON document is a file of AIMET's encodings."""
    if not isinstance(content, dict):
        return False
    return any(section in content for section in _SECTIONS) or {"version", "encodings"} <= set(content)


def read_aimet(content: dict[str, Any], source: str) -> Given:
    """Return the encodings in a file. Raises PlanError that names the entry and field at fault."""
    reading = Reading(source)
    version = str(content.get("version", ""))
    if "encodings" in content:
        read, entries = read_2, _read_entries(reading, "encodings", content["encodings"])
    else:
        parts = {section: content[section] for section in _SECTIONS if section in content}
        if all(isinstance(part, dict) for part in parts.values()):
            return read_0_6_1(reading, parts, version or "0.6.1")
        read, entries = (
            read_1_0_0,
            (e for name, part in parts.items() for e in _read_entries(reading, name, part)),
        )
    for where, entry in entries:
        read(reading, where, field(reading, where, entry, "name", str), entry)
    known = version or ("2.0.0" if "encodings" in content else "1.0.0")
    return reading.get_given(f"AIMET encodings {known}")


def _read_entries(reading: Reading, section: str, part: object) -> Iterator[tuple[str, Entry]]:
    if not isinstance(part, list):
        raise reading.fault(section, f"must be a list of encodings, got {part!r:.40}; export it again")
    for number, entry in enumerate(part):
        where = f"{section}.{number}"
        if not isinstance(entry, dict):
            raise reading.fault(where, f"must be a mapping of fields, got {entry!r:.40}; export it again")
        yield where, entry
