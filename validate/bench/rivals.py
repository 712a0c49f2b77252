"""What users would run otherwise, timed beside a pair: transformers, and z-lab's own loop.

Both run the same checkpoints in float32 on the CPU, with as many threads.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

from draftrt.backends import missing
from draftrt.bundle import Bundle
from draftrt.errors import BackendError
from draftrt.runtime.load import find_target
from draftrt.runtime.targets.huggingface import load_pretrained
from draftrt.validate.bench.measure import Decoded, System

ZLAB_FORMAT = "z-lab"  # the one checkpoint format that z-lab's loop loads


class Transformers:
    """Greedy ``generate`` of transformers.

    Attributes:
        name: with its version.
        model: the loaded target.
        torch: the torch module.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        self.name = f"transformers {transformers.__version__}"
        self.torch: ModuleType = torch
        self.model: Any = load_pretrained(
            transformers, transformers.AutoModelForCausalLM, folder, dtype="float32"
        )
        self.model.generation_config.eos_token_id = None

    def decode(self, prompt_ids: tuple[int, ...], max_tokens: int) -> Decoded:
        """Decode exactly ``max_tokens`` tokens."""
        ids = self.torch.tensor([prompt_ids])
        started = perf_counter()
        with self.torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=self.torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        return _decoded(out, prompt_ids, perf_counter() - started)


class Zlab:
    """The decoding loop of z-lab's ``dflash`` package, with the same target in the same process.

    Attributes:
        name: with its version.
    """

    def __init__(self, draft: Path, target: Transformers) -> None:
        import transformers

        package = importlib.import_module("dflash.model")
        self.name = f"z-lab dflash {importlib.metadata.version('dflash')}"
        self._target, self._loop = target, package.dflash_generate
        config = transformers.AutoConfig.from_pretrained(str(draft), local_files_only=True)
        kind = (config.architectures or ["DFlashDraftModel"])[0]
        self._draft: Any = load_pretrained(
            transformers, getattr(package, kind), draft, dtype="float32"
        )

    def decode(self, prompt_ids: tuple[int, ...], max_tokens: int) -> Decoded:
        """Decode exactly ``max_tokens`` tokens."""
        ids = self._target.torch.tensor([prompt_ids])
        started = perf_counter()
        out = self._loop(self._draft, self._target.model, ids, max_tokens, None)
        return _decoded(out, prompt_ids, perf_counter() - started)


def check_rivals(bundle: Bundle, target: Path | None, draft: Path | None) -> None:
    """Refuse folders that `load_rivals` could not load, before anything is measured.

    Raises:
        BackendError: the target's folder is gone, or there is no checkpoint in the drafter's.
        SpecError: the folder holds another target.
    """
    find_target(bundle, target)
    if draft is not None and not (draft / "config.json").is_file():
        raise BackendError(
            f"{draft}: no config.json there, expected the drafter's checkpoint",
            hint="give the folder that the bundle was exported from with --draft",
        )


def load_rivals(
    bundle: Bundle, *, target: Path | None, draft: Path | None, threads: int
) -> tuple[list[System], list[str]]:
    """Load every rival that is installed and can run the pair.

    Args:
        bundle: the pair as exported.
        target: the target's folder; None: the one it was exported from.
        draft: the drafter's checkpoint, for z-lab's loop.
        threads: torch's threads, for the whole process.

    Returns:
        The rivals, and a line for each that is missing.

    Raises:
        BackendError: the target's folder is gone, or a folder cannot be loaded.
    """
    if absent := missing("torch", "transformers"):
        return [], [f"transformers, z-lab's loop: not run, {' and '.join(absent)} not installed"]
    own = Transformers(find_target(bundle, target), threads)
    found = bundle.drafter().checkpoint_format
    if missing("dflash"):
        reason = "not installed (pip install dflash==0.1.0)"
    elif found != ZLAB_FORMAT:
        reason = f"it loads its own checkpoint format, this drafter's is {found}"
    elif draft is None:
        reason = "give the drafter's checkpoint with --draft"
    else:
        return [own, Zlab(draft, own)], []
    return [own], [f"z-lab's loop: not run, {reason}"]


def _decoded(out: Any, prompt_ids: tuple[int, ...], total_s: float) -> Decoded:
    ids = out[0, len(prompt_ids) :].tolist()
    return Decoded(token_ids=tuple(ids), total_s=total_s)
