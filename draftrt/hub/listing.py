"""What a repository of the hub holds at a commit, what of it is needed, and what went wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any
from urllib.parse import quote

from draftrt.backends import require
from draftrt.codec import parse
from draftrt.errors import CheckpointError, DraftrtError
from draftrt.hub.names import COMMIT, HubName

CONFIG, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", ".safetensors"
# What the readers of checkpoints open, beside weights: configs, tokenizer, templates. No code.
NEEDED = (
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "hf_quant_config.json",
    "quantization_config.json",
    "quantize_config.json",
    "quant_config.json",
    INDEX,
)
MORE_TEMPLATES = re.compile(r"additional_chat_templates/[^/]+\.jinja")
REPOSITORY = "the repository"
SECONDS = 30.0  # for an answer
PARTIAL = 206  # status of an answer that is the part asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A file of a repository.

    Attributes:
        name: its path there.
        bytes: its size; None where the listing does not say.
        hashes: what its content must have, SHA-256 or Git's blob hash.
    """

    name: str
    bytes: int | None
    hashes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A repository at a commit.

    Attributes:
        name: what was asked for.
        commit: the revision that it is now.
        files: every file by name.
    """

    name: HubName
    commit: str
    files: Mapping[str, HubFile]

    @property
    def small_files(self) -> list[HubFile]:
        """Configs, tokenizer and templates, in the order of their names."""
        return [
            file
            for name, file in sorted(self.files.items())
            if name in NEEDED or MORE_TEMPLATES.fullmatch(name)
        ]

    @property
    def weights(self) -> list[HubFile]:
        """Safetensors files beside the config; which of them count an index says."""
        return [
            file
            for name, file in sorted(self.files.items())
            if name.endswith(WEIGHTS) and "/" not in name
        ]

    def check(self) -> None:
        """Refuse a repository that holds no checkpoint.

        Raises:
            CheckpointError: without config or safetensors.
        """
        place = f"{self.name} at {self.commit[:12]}"
        if CONFIG not in self.files:
            raise CheckpointError(
                f"{place}: no {CONFIG} among {len(self.files)} files",
                hint="give the repository of a checkpoint as its publisher wrote it",
            )
        if not self.weights:
            others = [
                name for name in self.files if name.endswith((".bin", ".pt", ".pth", ".gguf"))
            ]
            found = f", only {', '.join(sorted(others)[:4])}" if others else ""
            raise CheckpointError(
                f"{place}: no safetensors file{found}",
                hint="pickled files can run code and are never loaded; look for the publisher's "
                "safetensors files, maybe at another revision",
            )


def hub() -> ModuleType:
    """Return the package of the hub.

    Raises:
        BackendError: it is not installed.
    """
    require("huggingface_hub", what="a checkpoint by name (owner/name)")
    import huggingface_hub

    return huggingface_hub


def endpoint() -> str:
    """Return the address of the hub."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def list_repository(name: HubName) -> Listing:
    """Ask the hub what a name stands for now.

    Raises:
        OfflineError: the hub is not asked, or cannot be reached.
        CheckpointError: there is no such repository or revision, or no access to it.
    """
    hub()
    revision = quote(name.revision, safe="")
    with told(name):
        # HfApi().model_info does the same; its import takes as long as all else of `inspect`.
        answer = get(f"{endpoint()}/api/models/{name.repository}/revision/{revision}?blobs=true")
    try:
        about = parse(answer.content)
        files = dict(map(_file, about["siblings"]))
        if not COMMIT.fullmatch(about["sha"]):
            raise ValueError("no commit")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{name}: {endpoint()} answered {answer.content[:60]!r}, expected a list of files",
            hint="check HF_ENDPOINT",
        ) from error
    return Listing(name=name, commit=about["sha"], files=files)


def _file(sibling: Mapping[str, Any]) -> tuple[str, HubFile]:
    """Return a file of the hub's list, by name; what the list leaves out is None."""
    name, large = str(sibling["rfilename"]), sibling.get("lfs") or {}
    size = large.get("size", sibling.get("size"))
    known = large.get("sha256") or sibling.get("blobId")
    return name, HubFile(name=name, bytes=size, hashes=(known,) if known else ())


@contextmanager
def answering(url: str, headers: Mapping[str, str] = MappingProxyType({})) -> Iterator[Any]:
    """Give the hub's answer to a request, its body unread."""
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        get_session,
        hf_raise_for_status,
    )

    wanted = {**build_hf_headers(library_name="draftrt"), "Accept-Encoding": "identity", **headers}
    with get_session().stream(
        "GET", url, headers=wanted, timeout=SECONDS, follow_redirects=True
    ) as answer:
        hf_raise_for_status(answer)
        yield answer


def get(url: str, headers: Mapping[str, str] = MappingProxyType({})) -> Any:
    """Return the hub's answer, unread where a part was asked for and the whole would come."""
    with answering(url, headers) as answer:
        if not headers or answer.status_code == PARTIAL:
            answer.read()
    return answer


class OfflineError(CheckpointError):
    """The hub is not asked, or cannot be reached; what the cache holds may do."""


def cached_snapshot(name: HubName) -> Path | None:
    """Return the folder of the cache with a whole checkpoint of that name; None where none is.

    Whole: weights come last, so that a folder with all of them has everything.

    Raises:
        CheckpointError: it is there in part.
    """
    found = hub().try_to_load_from_cache(name.repository, CONFIG, revision=name.revision)
    if not isinstance(found, str):
        return None
    return Path(found).parent


def explain(error: Exception, name: HubName, what: str) -> DraftrtError:
    """Return what the hub's package raised as one sentence of ours."""
    from huggingface_hub import errors

    place, access = endpoint(), "log in with `hf auth login`, or set HF_TOKEN"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return OfflineError(
            f"{name}: no such folder here; HF_HUB_OFFLINE is set, and {what} is not in the cache",
            hint="fetch it once without HF_HUB_OFFLINE, or give a folder",
        )
    is_file = what != REPOSITORY
    if isinstance(error, errors.GatedRepoError) or status == 403 or (is_file and status == 401):
        return CheckpointError(
            f"{name}: {place} gives {what} only to accounts that were granted access",
            hint=f"ask for it on {place}/{name.repository}, then {access}",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return CheckpointError(
            f"{name.repository}: no revision {name.revision!r} on {place}",
            hint="give a branch, a tag or a commit that the repository has",
        )
    if isinstance(error, errors.EntryNotFoundError) or (is_file and status == 404):
        return CheckpointError(
            f"{name}: {place} lists {what}, but does not have it",
            hint="the repository is damaged or was changed meanwhile; try again",
        )
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 404):
        return CheckpointError(
            f"{name}: no such folder here, and no such repository on {place}, or a private one",
            hint=f"check the name; for a private one {access}",
        )
    said = " ".join(str(error).split()) or type(error).__name__
    if status is not None:
        return CheckpointError(
            f"{name}: {place} answered {status} when asked for {what}", hint="try again later"
        )
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return CheckpointError(f"{name}: {what}: {error.strerror}: {error.filename}")
    if isinstance(error, OSError | ValueError):  # sizes that differ, names that none may have
        return CheckpointError(f"{name}: {what}: {said:.300}", hint="the same command goes on")
    return OfflineError(
        f"{name}: {'' if is_file else 'no such folder here, and '}{place} cannot be reached for "
        f"{what}: {said:.200}",
        hint="check the network and HF_ENDPOINT; the same command goes on where it stopped",
    )


@contextmanager
def told(name: HubName, what: str = REPOSITORY) -> Iterator[None]:
    """Turn what the hub's package raises within into one sentence.

    Raises:
        DraftrtError: see `explain`.
    """
    try:
        yield
    except (transport_error(), OSError, ValueError) as error:
        raise explain(error, name, what) from error


def transport_error() -> type[Exception]:
    """Return the class of what the client raises, whichever client the hub's package has."""
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__bases__[0]
