"""``manifest.json`` read: its format, its version, and what to say where it is of another build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from draftrt import __version__
from draftrt.codec import from_json
from draftrt.errors import BundleError, SpecError
from draftrt.manifest import Manifest

MANIFEST = "manifest.json"
FORMAT = "draftrt-bundle"
VERSION = 2


def read_manifest(folder: Path) -> Manifest:
    """Read ``manifest.json`` of a bundle.

    Raises:
        BundleError: missing, not JSON, another format or version, or ill-formed.
    """
    path = folder / MANIFEST
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BundleError(
            f"{folder}: no {MANIFEST} there",
            hint="give the folder that `draftrt export ... -o` wrote",
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(
            f"{path}: cannot be read as JSON: {error}", hint="export the bundle again"
        ) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
        got = (data.get("format"), data.get("version")) if isinstance(data, dict) else type(data)
        raise BundleError(
            f"{path}: got format {got}, expected ('{FORMAT}', {VERSION})",
            hint="export the bundle again with this version of draftrt",
        )
    content = {name: value for name, value in data.items() if name not in ("format", "version")}
    try:
        return from_json(Manifest, content)
    except (BundleError, SpecError) as error:
        raise BundleError(f"{path}: {error.message}", hint=_other_version(content)) from error


def _other_version(content: dict[str, Any]) -> str:
    """Return why a manifest may hold what this version does not expect, and what to do."""
    tools = content.get("tools")
    written = tools.get("draftrt") if isinstance(tools, dict) else None
    if isinstance(written, str) and written != __version__:
        by = f"draftrt {written:.40}, and this is {__version__}"
    else:
        by = f"another build of draftrt {__version__}"
    return f"the bundle was written by {by}, or its manifest was edited; export it again"
