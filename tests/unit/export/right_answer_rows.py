"""Good checkpoints, each with another way to write its tensors that means the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.toys.models import Kind

ZLAB, DFLASH2 = Kind.ZLAB_DFLASH, Kind.ZLAB_DFLASH2
DEEPSPEC, DSPARK, GEMMA = Kind.DEEPSPEC_DFLASH, Kind.DEEPSPEC_DSPARK, Kind.DEEPSPEC_GEMMA4
SPEC_DFLASH, SPEC_DSPARK = Kind.SPECULATORS_DFLASH, Kind.SPECULATORS_DSPARK
Arrays = dict[str, NDArray[Any]]
Change = Callable[[Arrays], Arrays]
TOLERANCE = 1e-5  # where a file places a tensor decides how its products are summed
THETA = 10_000.0
BODY = "transformer_layer_config"


@dataclass(frozen=True, kw_only=True)
class Same:
    """A checkpoint and another way to write it."""

    kind: Kind
    toy: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    arrays: Change | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = TOLERANCE
    options: Mapping[str, Any] = field(default_factory=dict)


def renamed(*pairs: tuple[str, str]) -> Change:
    """Replace the start of names."""

    def change(arrays: Arrays) -> Arrays:
        out = {}
        for name, array in arrays.items():
            old, new = next((p for p in pairs if name.startswith(p[0])), ("", ""))
            out[new + name[len(old) :]] = array
        return out

    return change


def prefixed(prefix: str) -> Change:
    return lambda arrays: {prefix + name: array for name, array in arrays.items()}


def fused(*parts: str, into: str) -> Change:
    """Stack parts of every layer by rows, biases too."""

    def change(arrays: Arrays) -> Arrays:
        out = dict(arrays)
        for name in arrays:
            layer, _, rest = name.partition(f".{parts[0]}.")
            if rest:
                stack = [out.pop(f"{layer}.{part}.{rest}") for part in parts]
                out[f"{layer}.{into}.{rest}"] = np.concatenate(stack)
        return out

    return change


def with_(**added: NDArray[Any]) -> Change:
    return lambda arrays: arrays | {n.replace("__", "."): a for n, a in added.items()}


def without(*names: str) -> Change:
    return lambda arrays: {n: a for n, a in arrays.items() if n not in names}


def absolute(arrays: Arrays) -> Arrays:
    return arrays | {"d2t": arrays["d2t"] + np.arange(len(arrays["d2t"]))}


UNUSED = np.zeros(8, np.float32)
TENSOR_ROWS: dict[str, Same] = {
    # names
    "model. before every name": Same(kind=ZLAB, arrays=prefixed("model.")),
    "draft_model. before every name": Same(kind=DSPARK, arrays=prefixed("draft_model.")),
    "Muse's encoder names": Same(
        kind=ZLAB,
        arrays=renamed(
            ("fc.", "encoder.fc."),
            ("hidden_norm.", "encoder.output_norm_enc."),
            ("norm.", "final_norm."),
        ),
        config={"architectures": ["MuseGlimmerAssistantModel"]},
    ),
    "TorchSpec's context names": Same(
        kind=DSPARK, arrays=renamed(("fc.", "context_proj."), ("hidden_norm.", "context_norm."))
    ),
    "a single layer as midlayer": Same(
        kind=ZLAB, toy={"num_layers": 1}, arrays=renamed(("layers.0.", "midlayer."))
    ),
    "ModelOpt's flat head names": Same(
        kind=DSPARK,
        toy={"markov_type": "gated"},
        arrays=renamed(("markov_head.", ""), ("confidence_head.proj.", "confidence_proj.")),
    ),
    "flat joint projection": Same(
        kind=DSPARK, toy={"markov_type": "rnn"}, arrays=renamed(("markov_head.", ""))
    ),
    "early DSpark's logit_head": Same(
        kind=DSPARK,
        arrays=renamed(
            ("markov_head.", "logit_head.markov_head."),
            ("confidence_head.", "logit_head.confidence_head."),
        ),
    ),
    "codebooks stored bare": Same(
        kind=DFLASH2,
        arrays=lambda arrays: {
            name.replace("_codebook.weight", "_codebook"): array for name, array in arrays.items()
        },
    ),
    "fused qkv": Same(
        kind=ZLAB,
        toy={"attention_bias": True},
        arrays=fused("q_proj", "k_proj", "v_proj", into="qkv_proj"),
    ),
    "fused gate and up": Same(
        kind=DSPARK, arrays=fused("gate_proj", "up_proj", into="gate_up_proj")
    ),
    # tensors that say nothing
    "rotary buffers": Same(kind=ZLAB, arrays=with_(rotary_emb__inv_freq=UNUSED)),
    "speculators' verifier tensors": Same(
        kind=SPEC_DFLASH,
        arrays=with_(verifier_norm__weight=UNUSED, verifier_lm_head__weight=np.zeros((9, 4), "f4")),
    ),
    "a DSpark placeholder for a mask embedding": Same(
        kind=DSPARK, arrays=with_(mask_embedding=np.ones(40, np.float32))
    ),
    "t2d left out": Same(kind=SPEC_DSPARK, toy={"draft_vocab_size": 96}, arrays=without("t2d")),
    # vocabularies
    "d2t as absolute ids": Same(kind=SPEC_DSPARK, toy={"draft_vocab_size": 96}, arrays=absolute),
    "d2t as absolute ids without t2d": Same(
        kind=SPEC_DSPARK,
        toy={"draft_vocab_size": 96},
        arrays=lambda arrays: without("t2d")(absolute(arrays)),
    ),
    "d2t as int32": Same(
        kind=SPEC_DSPARK,
        toy={"draft_vocab_size": 96},
        arrays=lambda arrays: arrays | {"d2t": arrays["d2t"].astype(np.int32)},
    ),
    "an identity d2t for a full vocabulary": Same(
        kind=SPEC_DFLASH, arrays=with_(d2t=np.zeros(264, np.int64))
    ),
    # files
    "sharded with an index": Same(kind=DSPARK, fields={"num_shards": 3}),
    "bfloat16 weights": Same(kind=DSPARK, fields={"dtype": "bfloat16"}, tolerance=0.1),
    "float16 weights": Same(kind=DFLASH2, fields={"dtype": "float16"}, tolerance=0.1),
}
