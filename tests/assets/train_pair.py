"""Make the small pair that ships with the tests: a tiny target, a DFlash and a DSpark for it.

    python -m tests.assets.train_pair --out tests/assets --threads 1

Everything is generated and seeded; nothing is downloaded. Needs torch, transformers, tokenizers and
safetensors, and takes about 16 minutes of CPU time, less by the clock with two threads on quiet
cores. Rounding differs between versions of those packages and numbers of threads, so a rerun
elsewhere gives an equally good pair, not the same bytes. Ends by decoding held-out prompts greedily
with both drafters, and fails if too few drafts are accepted or the output is not the target's own.
"""

import argparse
import json
import logging
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import DynamicCache, Qwen3ForCausalLM

from tests.assets.pair_drafters import (
    MARKOV_RANK,
    NUM_ANCHORS,
    NUM_DRAFT_LAYERS,
    DFlash,
    DSpark,
    train_drafters,
)
from tests.assets.pair_target import (
    MASK_ID,
    TARGET_LAYER_IDS,
    features_of,
    new_target,
    own_continuations,
    save_target,
    token_stream,
    train_target,
    train_tokenizer,
    windows,
)
from tests.assets.pair_text import make_prompts

SEED = 20260901
NUM_PROMPTS = 200
NUM_TRIED, NUM_NEW_TOKENS = 40, 96  # prompts decoded at the end, and tokens for each
LOWEST_MEAN = 3.0  # acceptance length (accepted drafts + 1) that either drafter must reach

log = logging.getLogger(__name__)


@torch.no_grad()
def greedy(target: Qwen3ForCausalLM, ids: torch.Tensor, count: int) -> list[int]:
    """Decode `count` tokens after [1, P] ids with the target alone, one at a time."""
    cache = DynamicCache(config=target.config)
    tokens: list[int] = []
    while len(tokens) < count:
        logits = target(ids, past_key_values=cache).logits[0, -1]
        tokens.append(int(logits.argmax()))
        ids = torch.tensor([tokens[-1:]])
    return tokens


def draft(drafter: DFlash, features: torch.Tensor, anchor: int) -> list[int]:
    """Draft one block after the context [1, T, m*H] and its anchor token, greedily."""
    place = torch.tensor([[features.shape[1]]])
    rows = drafter.block_rows(features, torch.tensor([[anchor]]), place)[0, 0]
    tokens = [anchor]
    for row in rows[drafter.first_row :]:
        tokens.append(int(drafter.logits(row, torch.tensor(tokens[-1])).argmax()))
    return tokens[1:]


@torch.no_grad()
def speculate(
    target: Qwen3ForCausalLM, drafter: DFlash, ids: torch.Tensor, count: int
) -> tuple[list[int], list[int]]:
    """Decode `count` tokens in whole blocks; return them and every round's acceptance length."""
    cache = DynamicCache(config=target.config)
    output = target(ids, past_key_values=cache, output_hidden_states=True)
    features = features_of(output.hidden_states)
    tokens = [int(output.logits[0, -1].argmax())]
    lengths: list[int] = []
    while len(tokens) < count:
        drafts = draft(drafter, features, tokens[-1])
        block = torch.tensor([[tokens[-1], *drafts]])
        output = target(block, past_key_values=cache, output_hidden_states=True)
        choices = output.logits[0].argmax(-1).tolist()
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == choices[accepted]:
            accepted += 1
        lengths.append(accepted + 1)
        tokens += choices[: accepted + 1]
        features = torch.cat([features, features_of(output.hidden_states)[:, : accepted + 1]], 1)
        if accepted < len(drafts):
            cache.crop(accepted - len(drafts))
    return tokens[:count], lengths


def drafter_config(target: Qwen3ForCausalLM, drafter: DFlash) -> dict[str, Any]:
    """Describe a drafter in its publisher's keys: z-lab's for DFlash, DeepSpec's for DSpark."""
    source = target.config.to_dict()
    copied = (
        "vocab_size hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim "
        "hidden_act max_position_embeddings rms_norm_eps rope_parameters attention_bias "
        "bos_token_id eos_token_id pad_token_id"
    )
    config: dict[str, Any] = {key: source[key] for key in copied.split()}
    config |= {
        "model_type": "qwen3",
        "dtype": "float32",
        "num_hidden_layers": NUM_DRAFT_LAYERS,
        "layer_types": ["full_attention"] * NUM_DRAFT_LAYERS,
        "num_target_layers": target.config.num_hidden_layers,
        "tie_word_embeddings": False,
        "block_size": drafter.block_size,
    }
    taps = {"target_layer_ids": list(TARGET_LAYER_IDS), "mask_token_id": MASK_ID}
    if not isinstance(drafter, DSpark):
        return config | {"architectures": ["DFlashDraftModel"], "dflash_config": taps}
    heads = {
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "markov_rank": MARKOV_RANK,
        "markov_head_type": "vanilla",
        "num_anchors": NUM_ANCHORS,
    }
    return config | {"architectures": ["Qwen3DSparkModel"]} | taps | heads


def save_drafter(target: Qwen3ForCausalLM, drafter: DFlash, folder: Path) -> None:
    """Write config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps(drafter_config(target, drafter), indent=2) + "\n"
    )
    tensors = {name: tensor.contiguous() for name, tensor in drafter.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def try_pair(
    target: Qwen3ForCausalLM, drafters: list[DFlash], tokenizer: Tokenizer, prompts: list[str]
) -> None:
    """Decode prompts with every drafter, log the acceptance, raise if low or not lossless."""
    encoded = [torch.tensor([tokenizer.encode(prompt).ids]) for prompt in prompts]
    plain = [greedy(target, ids, NUM_NEW_TOKENS) for ids in encoded]
    for prompt, tokens in list(zip(prompts, plain, strict=True))[::8]:
        log.info(
            "target: %s", json.dumps(prompt + tokenizer.decode(tokens, skip_special_tokens=False))
        )
    for drafter in drafters:
        name, lengths = type(drafter).__name__, Counter[int]()
        for prompt, ids, expected in zip(prompts, encoded, plain, strict=True):
            tokens, rounds = speculate(target, drafter, ids, NUM_NEW_TOKENS)
            if tokens != expected:
                raise RuntimeError(f"{name}: output after {prompt!r} is not the target's own")
            lengths.update(rounds)
        mean = sum(n * times for n, times in lengths.items()) / lengths.total()
        log.info(
            "%s: mean acceptance length %.2f, rounds by length %s",
            name,
            mean,
            dict(sorted(lengths.items())),
        )
        if mean < LOWEST_MEAN:
            raise RuntimeError(
                f"{name}: mean acceptance length {mean:.2f}, expected at least {LOWEST_MEAN}"
            )


def make_pair(out: Path, target_steps: int, drafter_steps: int) -> None:
    """Train everything, write it under `out`, and try it."""
    torch.manual_seed(SEED)
    tokenizer = train_tokenizer(SEED)
    stream = token_stream(tokenizer, SEED + 1, 2_000_000)
    target = new_target()
    train_target(target, stream, SEED + 2, target_steps)
    target.train(False).requires_grad_(False)
    save_target(target, tokenizer, out / "tiny-target")
    own = own_continuations(target, tokenizer, SEED + 3, 100, 256)
    log.info("target continued the beginnings of %d documents", len(own))

    def batch(step: int) -> torch.Tensor:
        if step % 8 == 7:
            return windows(stream, SEED + step, 2, 1024)
        generator = torch.Generator().manual_seed(SEED + step)
        chosen = own[torch.randint(0, len(own), (6,), generator=generator)]
        return torch.cat([chosen, windows(stream, SEED + step, 2, 256)])

    drafters: list[DFlash] = [DFlash(target), DSpark(target)]
    train_drafters(target, drafters, batch, SEED + 4, drafter_steps)
    for drafter in drafters:
        save_drafter(target, drafter, out / f"tiny-{type(drafter).__name__.lower()}")
    prompts = make_prompts(SEED + 5, NUM_PROMPTS)
    (out / "prompts.txt").write_text("\n".join(prompts) + "\n")
    try_pair(target, drafters, tokenizer, prompts[:NUM_TRIED])


def main() -> None:
    """Read the command line and make the pair."""
    parser = argparse.ArgumentParser(description="Make the small pair that ships with the tests.")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder to write tiny-* and prompts.txt to"
    )
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    parser.add_argument(
        "--target-steps", type=int, default=1500, help="training steps of the target"
    )
    parser.add_argument(
        "--drafter-steps", type=int, default=400, help="training steps of the drafters"
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(options.threads)
    start, start_cpu = time.monotonic(), time.process_time()
    make_pair(options.out, options.target_steps, options.drafter_steps)
    seconds, cpu_seconds = time.monotonic() - start, time.process_time() - start_cpu
    log.info("made in %.0f s (CPU %.0f s), threads: %d", seconds, cpu_seconds, options.threads)


if __name__ == "__main__":
    main()
