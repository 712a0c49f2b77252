"""``manifest.json``: its format, its version, its checksum, and what to say of another build's.

The checksum is that of everything but ``files``, whose entries are compared with the files.
Numbers count as they are written.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from draftrt import __version__
from draftrt.bundle_files import place_problem
from draftrt.codec import from_json, to_json
from draftrt.errors import BundleError, SpecError
from draftrt.json_file import parse, read_bytes
from draftrt.manifest import Manifest
from draftrt.manifest_check import check_manifest

MANIFEST = "manifest.json"
FORMAT = "draftrt-bundle"
VERSION = 2
MOST_BYTES = 64 << 20
CHECKSUM, UNCOUNTED = "checksum", ("checksum", "files")


def read_manifest(folder: Path) -> Manifest:
    """Read ``manifest.json`` of a bundle.

    Raises:
        BundleError: missing, not JSON, another format or version, or ill-formed.
    """
    path = folder / MANIFEST
    if path.exists() and (problem := place_problem(folder, MANIFEST)):
        raise BundleError(f"{path}: {problem}", hint="give the bundle's own folder")
    if not path.exists():
        raise BundleError(
            f"{folder}: no {MANIFEST} there",
            hint="give the folder that `draftrt export ... -o` wrote",
        )
    content = read_bytes(path, BundleError, most=MOST_BYTES)
    try:
        data = parse(content)
    except ValueError as error:
        raise BundleError(
            f"{path}: cannot be read as JSON: {error!s:.200}",
            hint="copy the bundle again, or export it again",
        ) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
        got = (data.get("format"), data.get("version")) if isinstance(data, dict) else type(data)
        raise BundleError(
            f"{path}: got format {got}, expected ('{FORMAT}', {VERSION})",
            hint="export the bundle again with this version of draftrt",
        )
    own = ("format", "version", CHECKSUM)
    facts = {name: value for name, value in data.items() if name not in own}
    try:
        manifest = from_json(Manifest, facts)
        check_manifest(manifest)
    except (BundleError, SpecError) as error:
        raise BundleError(f"{path}: {error.message}", hint=_other_version(facts)) from error
    if CHECKSUM in data and data[CHECKSUM] != (found := _checksum(content)):
        raise BundleError(
            f"{path}: was changed after it was written: got checksum {found[:12]}…, expected "
            f"{data[CHECKSUM]!s:.12}…",
            hint="copy the bundle again, or export it again",
        )
    return manifest


def manifest_text(manifest: Manifest) -> str:
    """Return the text of ``manifest.json``, its checksum included."""
    content = {"format": FORMAT, "version": VERSION, **to_json(manifest)}
    checksum = _checksum(json.dumps(content).encode())
    return json.dumps({**content, CHECKSUM: checksum}, indent=1, ensure_ascii=False) + "\n"


def _checksum(text: bytes) -> str:
    """Return the hex SHA-256 of what a manifest's text says but for `UNCOUNTED`."""
    content = json.loads(text, parse_float="float {}".format, parse_int="int {}".format)
    counted = {name: value for name, value in content.items() if name not in UNCOUNTED}
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()


def _other_version(content: dict[str, Any]) -> str:
    """Return why a manifest may hold what this version does not expect, and what to do."""
    tools = content.get("tools")
    written = tools.get("draftrt") if isinstance(tools, dict) else None
    if isinstance(written, str) and written != __version__:
        by = f"draftrt {written:.40}, and this is {__version__}"
    else:
        by = f"another build of draftrt {__version__}"
    return f"the bundle was written by {by}, or its manifest was edited; export it again"
