"""A Hugging Face causal language model behind the target port.

The one file of the runtime that needs torch and transformers (4.57 or 5), imported when a model is
loaded. Features are taken by hooks at the decoder layers' outputs, because the last entry of
``output_hidden_states`` is final-normed.

Layers that keep a state in place of keys and values cannot go back with transformers: its ``crop``
cuts a convolution's window and leaves the recurrent state as it was, without a word. A model that
has one runs without a cache: every call computes the whole text again, which is slow and right.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.backends import import_package, require
from draftrt.codec import read_object
from draftrt.errors import BackendError, SpecError, UnsupportedError
from draftrt.runtime.targets.base import Croppable, TargetRows
from draftrt.spec import TargetSpec

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
CROPPABLE_LAYERS = {"full_attention", "sliding_attention"}


class HfTarget(Croppable):
    """A model folder, loaded with transformers and run by torch.

    Attributes:
        length: tokens whose K/V are cached.
        generation: number of the sequence they belong to; 0 where nobody claimed them.
        max_context: positions the model declares.
        feature_size: width of the features, m * H_t.
        num_layers: decoder layers.
        recomputed: kinds of layers for which every call computes the whole text; empty where keys
            and values are kept.
    """

    def __init__(
        self,
        folder: Path | str,
        layer_ids: Sequence[int] = (),
        *,
        dtype: str = "float32",
        device: str = "cpu",
        threads: int = 1,
    ) -> None:
        """Load a model.

        Args:
            folder: a local folder with config.json and safetensors; its own code is never run.
            layer_ids: tapped decoder layers, 0-based, in feature order; -1 the embedding output.
            dtype: element type it computes in, as torch names it.
            device: torch device.
            threads: torch's threads, for the whole process.

        Raises:
            BackendError: torch or transformers is missing, the weights are no safetensors, or
                transformers cannot load the folder.
            SpecError: a tapped layer is beyond the model's depth.
        """
        config = read_text_config(Path(folder))
        torch, transformers = _import_frameworks()
        _check_weights(Path(folder))
        torch.set_num_threads(threads)
        self._model: Any = load_pretrained(
            transformers,
            transformers.AutoModelForCausalLM,
            Path(folder),
            dtype=getattr(torch, dtype),
            trust_remote_code=False,
        ).to(device)
        # transformers 5 renames the argument that 4.57 knows as past_key_values.
        parameters = inspect.signature(self._model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self.recomputed = _kinds_with_a_state(self._model.config, config, parameters)
        self._ids = np.zeros(0, np.int64)  # of the whole text, where it is computed again
        self._torch, self._new_cache = torch, transformers.DynamicCache
        self._device = device
        # Without its config the cache keeps sliding layers whole, so that they can be cropped.
        self._cache: Any = self._new_cache()
        self._layer_ids = tuple(layer_ids)
        self._taps: dict[int, Any] = {}
        self.length = self.generation = 0
        layers = self._model.get_decoder().layers
        self.num_layers = len(layers)
        self.max_context = int(config["max_position_embeddings"])
        self.feature_size = len(self._layer_ids) * int(config["hidden_size"])
        self._hook(layers)

    def prefill(self, token_ids: NDArray[np.int64], *, want_logits: bool = False) -> TargetRows:
        """Append a prompt; see `draftrt.runtime.targets.base.Target.prefill`."""
        return self._run(token_ids, 1, want_logits)

    def verify(self, token_ids: NDArray[np.int64], *, want_logits: bool = False) -> TargetRows:
        """Append an anchor and drafts; see `draftrt.runtime.targets.base.Target.verify`."""
        return self._run(token_ids, len(token_ids), want_logits)

    def rollback(self, length: int) -> None:
        """Forget every cached token from position ``length`` on."""
        self._check_open()
        if length == 0:
            self._cache, self.generation = self._new_cache(), 0
        self._ids = self._ids[:length]
        # One by one: an interrupted call fills only the first layers.
        for layer in self._cache.layers:
            if not getattr(layer, "is_croppable", True):
                raise UnsupportedError(
                    f"{type(layer).__name__} of transformers cannot go back, expected keys and "
                    "values alone",
                    hint="a defect of draftrt for this architecture, please report it",
                )
            excess = layer.get_seq_length() - length
            if excess > 0:
                layer.crop(-excess)  # negative: a positive number is refused by transformers 5
        self.length = min(self.length, length)

    def reach(self, length: int) -> int:
        """Return how many of these tokens need no computing again; none where nothing is kept."""
        return 0 if self.recomputed else min(length, self.length)

    def final_norm(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return hidden states [T, H_t] float32 behind the model's own final norm.

        Raises:
            UnsupportedError: the decoder calls its final norm otherwise than ``norm``.
        """
        self._check_open()
        decoder = self._model.get_decoder()
        norm = getattr(decoder, "norm", None)
        if norm is None:
            raise UnsupportedError(
                f"{type(decoder).__name__} has no final norm called 'norm'",
                hint="a defect of draftrt for this architecture, please report it",
            )
        with self._torch.inference_mode():
            tensor = self._torch.from_numpy(rows).to(self._device, self._model.dtype)
            normed: NDArray[np.float32] = norm(tensor).float().cpu().numpy()
        return normed

    def close(self) -> None:
        """Free the model."""
        self._model = self._cache = None
        self._taps.clear()

    def _run(self, token_ids: NDArray[np.int64], num_rows: int, want_logits: bool) -> TargetRows:
        self._check_open()
        with self._torch.inference_mode():
            fed = np.concatenate([self._ids, token_ids]) if self.recomputed else token_ids
            ids = self._torch.from_numpy(np.ascontiguousarray(fed))[None].to(self._device)
            cache = {} if self.recomputed else {self._cache_argument: self._cache}
            out = self._model(
                input_ids=ids, use_cache=bool(cache), logits_to_keep=num_rows, **cache
            )
            logits = out.logits[0]
            chosen: NDArray[np.int64] = logits.argmax(-1).cpu().numpy()
            rows = TargetRows(
                features=self._features(len(token_ids)),
                token_ids=chosen,
                logits=logits.float().cpu().numpy() if want_logits else None,
            )
        self.length += len(token_ids)
        if self.recomputed:
            self._ids = fed
        return rows

    def _check_open(self) -> None:
        if self._model is None:
            raise BackendError("the target is closed", hint="load it again")

    def _features(self, num_tokens: int) -> NDArray[np.float32]:
        if not self._layer_ids:
            return np.zeros((1, num_tokens, 0), np.float32)
        taps = self._torch.cat(
            [self._taps[layer][:, -num_tokens:] for layer in self._layer_ids], dim=-1
        )
        self._taps.clear()
        features: NDArray[np.float32] = taps.float().cpu().numpy()
        return features

    def _hook(self, layers: Any) -> None:
        beyond = [layer for layer in self._layer_ids if not -1 <= layer < self.num_layers]
        if beyond:
            raise SpecError(
                f"the drafter taps layers {beyond}, the target has layers 0..{self.num_layers - 1}",
                hint="this drafter belongs to a deeper target; give its own",
            )
        for layer in set(self._layer_ids):
            if layer == -1:
                layers[0].register_forward_pre_hook(self._keep_input, with_kwargs=True)
            else:
                layers[layer].register_forward_hook(
                    lambda module, args, output, layer=layer: self._keep_output(layer, output)
                )

    def _keep_input(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._taps[-1] = args[0] if args else kwargs["hidden_states"]

    def _keep_output(self, layer: int, output: Any) -> None:
        self._taps[layer] = output[0] if isinstance(output, tuple) else output


def say_recomputed(target: HfTarget) -> str:
    """Return what it costs that a target's layers cannot go back; empty where they can."""
    if not target.recomputed:
        return ""
    return (
        f"layers of type {', '.join(target.recomputed)} keep a state that transformers cannot take "
        "back: every call computes the whole text again, which is right and slow"
    )


def read_text_config(folder: Path) -> dict[str, Any]:
    """Return the text model's part of a folder's config.json.

    Raises:
        BackendError: the file is missing or no JSON object, or lacks a size the runtime needs.
    """
    path = folder / "config.json"
    config = read_object(path, BackendError, hint="give the target's folder with --target")
    text = config.get("text_config")
    text = text if isinstance(text, dict) else config
    missing = [
        key
        for key in ("hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings")
        if not isinstance(text.get(key), int)
    ]
    if missing:
        raise BackendError(f"{path}: {missing} are missing or no whole numbers")
    sizes: dict[str, Any] = text
    return sizes


def check_same_target(folder: Path, spec: TargetSpec) -> None:
    """Check, before anything is loaded, that a folder holds a model of the exported target's shape.

    Raises:
        SpecError: depth, width or vocabulary differ; the message names all of them.
        BackendError: the folder has no readable config.json.
    """
    config = read_text_config(folder)
    pairs = [
        ("num_hidden_layers", spec.num_layers),
        ("hidden_size", spec.hidden_size),
        ("vocab_size", spec.table_rows or spec.vocab_size),
    ]
    wrong = [
        f"{name} is {config[name]}, expected {value}"
        for name, value in pairs
        if config[name] not in (value, spec.vocab_size if name == "vocab_size" else value)
    ]
    if wrong:
        raise SpecError(
            f"{folder}: not the target this bundle was exported for: {'; '.join(wrong)}",
            hint="give the target that was passed to `draftrt export`",
        )


def _import_frameworks() -> tuple[ModuleType, ModuleType]:
    what = "a Hugging Face target"
    require("torch", "transformers", what=what, extra="hf")
    return (
        import_package("torch", what=what, extra="hf"),
        import_package("transformers", what=what, extra="hf"),
    )


def load_pretrained(transformers: ModuleType, kind: Any, folder: Path, **options: Any) -> Any:
    """Return a model of a class of transformers in evaluation mode, without a bar of progress.

    Raises:
        BackendError: transformers cannot load the folder.
    """
    from safetensors import SafetensorError

    progress = transformers.utils.logging
    is_shown = progress.is_progress_bar_enabled()
    progress.disable_progress_bar()
    try:
        return kind.from_pretrained(
            str(folder), local_files_only=True, use_safetensors=True, **options
        ).eval()
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        raise BackendError(
            f"{folder}: transformers {transformers.__version__} cannot load it: {error}"
        ) from error
    finally:
        if is_shown:
            progress.enable_progress_bar()


def _check_weights(folder: Path) -> None:
    """Refuse a folder whose weights are pickles: loading one may run what it holds.

    Raises:
        BackendError: there are pickles and no safetensors files; names them.
    """
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(one.name for kind in PICKLES for one in folder.glob(kind))
    if pickles:
        raise BackendError(
            f"{folder}: got weights as pickles ({', '.join(pickles[:3])}), expected safetensors",
            hint="a pickle may run code when it is loaded; convert it to safetensors",
        )


def _kinds_with_a_state(loaded: Any, config: Mapping[str, Any], arguments: Any) -> tuple[str, ...]:
    """Return the kinds of layers that cannot go back to an earlier length, in words.

    Args:
        loaded: the model's config as transformers completed it.
        config: the text model's part of the file.
        arguments: names of the arguments that the model takes.
    """
    text = loaded.get_text_config()
    kinds = {*(getattr(text, "layer_types", None) or ()), *(config.get("layer_types") or ())}
    found = sorted(kinds - CROPPABLE_LAYERS)
    if not found and not {"cache", "past_key_values"} & set(arguments):
        return ("no keys and values",)
    return tuple(found)
