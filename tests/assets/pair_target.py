"""The small pair's tokenizer and target: a byte-level BPE and a tiny Qwen3, trained on `pair_text`.

Also makes what drafters learn from: the target's features and its own continuations.
"""

import itertools
import json
import logging
import math
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import DynamicCache, GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from tests.assets.pair_text import as_text, documents

VOCAB_SIZE = 512
TARGET_LAYER_IDS = (1, 3, 4)  # 0-based; a context feature is the output of the layer
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
END_ID, IM_END_ID, MASK_ID = 0, 2, 3
NUM_LAYERS = 6
ROPE_THETA = 10000.0
CHAT_SHARE = 0.25  # of the training documents, written as a chat
CHAT_TEMPLATE = """{% for m in messages %}<|im_start|>{{m['role']}}
{{m['content']}}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

log = logging.getLogger(__name__)


def train_tokenizer(seed: int) -> Tokenizer:
    """Train the tokenizer: digits stay single, every byte is a token, ids 0-3 are the specials."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sample = itertools.islice(documents(seed, held_out=False), 3000)
    tokenizer.train_from_iterator(("".join(document) for document in sample), trainer)
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(
            f"tokenizer has {tokenizer.get_vocab_size()} tokens, expected {VOCAB_SIZE}"
        )
    return tokenizer


def token_stream(tokenizer: Tokenizer, seed: int, num_tokens: int) -> torch.Tensor:
    """Encode training documents, one after another, into [num_tokens] int64 ids."""
    rng = random.Random(seed)
    ids: list[int] = []
    for document in documents(seed, held_out=False):
        ids += tokenizer.encode(as_text(document, chat=rng.random() < CHAT_SHARE)).ids
        if len(ids) >= num_tokens:
            break
    return torch.tensor(ids[:num_tokens])


def windows(stream: torch.Tensor, seed: int, count: int, length: int) -> torch.Tensor:
    """Cut `count` random windows out of the stream: [count, length] int64."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(stream) - length, (count,), generator=generator)
    return stream[starts[:, None] + torch.arange(length)]


def new_target() -> Qwen3ForCausalLM:
    """Build the untrained target from the global torch seed."""
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=80,
        intermediate_size=224,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        bos_token_id=END_ID,
        eos_token_id=END_ID,
        pad_token_id=END_ID,
        dtype=torch.float32,
    )
    return Qwen3ForCausalLM(config)


def one_cycle(step: int, steps: int, peak: float) -> float:
    """Return a step's learning rate: a short rise to `peak`, then a cosine fall to 2 % of it."""
    warmup = max(1, steps // 20)
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates: learns in half of AdamW's steps at this size.

    For hidden matrices only; those of one shape are handled as one batch.
    """

    def __init__(self, matrices: list[torch.nn.Parameter], lr: float) -> None:
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix from its gradient."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[torch.nn.Parameter]] = {}
            for matrix in group["params"]:
                shapes.setdefault(matrix.shape, []).append(matrix)
            for same in shapes.values():
                self._step_batch(same, group["lr"])

    def _step_batch(self, matrices: list[torch.nn.Parameter], lr: float) -> None:
        gradients = torch.stack(
            [m.grad for m in matrices if m.grad is not None]
        )  # [n, rows, columns]
        momentum = self.state[matrices[0]].setdefault("momentum", torch.zeros_like(gradients))
        momentum.lerp_(gradients, 0.05)
        update = orthogonalised(gradients.lerp(momentum, 0.95))
        scale = 0.2 * max(update.shape[1:]) ** 0.5  # an update as large as AdamW's
        for matrix, change in zip(matrices, update, strict=True):
            matrix.add_(change, alpha=-lr * scale)


def orthogonalised(matrices: torch.Tensor) -> torch.Tensor:
    """Bring the singular values of [n, rows, columns] matrices near 1 by Newton-Schulz steps."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):  # coefficients of the quintic: Jordan et al., Muon, 2024
        gram = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    result: torch.Tensor = x.transpose(1, 2) if tall else x
    return result


def training_steps(model: torch.nn.Module, steps: int, peak: float) -> Iterator[int]:
    """Yield each step; the caller fills the gradients of it, and they are applied before the next.

    Matrices inside decoder layers learn by Muon, the other trainable parameters by AdamW.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    hidden = [p for name, p in named if p.ndim == 2 and "layers." in name]
    others = [p for name, p in named if not (p.ndim == 2 and "layers." in name)]
    optimizers = (Muon(hidden, lr=peak), torch.optim.AdamW(others, lr=peak, betas=(0.9, 0.98)))
    for step in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = one_cycle(step, steps, peak)
        yield step
        torch.nn.utils.clip_grad_norm_([*hidden, *others], 1.0)
        for optimizer in optimizers:
            optimizer.step()


def train_target(target: Qwen3ForCausalLM, stream: torch.Tensor, seed: int, steps: int) -> None:
    """Train on 4 windows of 256 tokens a step; every eighth step takes one of 1024."""
    for step in training_steps(target, steps, peak=1.2e-2):
        count, length = (1, 1025) if step % 8 == 7 else (4, 257)
        batch = windows(stream, seed + step, count, length)
        logits = target(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        torch.autograd.backward(loss)
        if step % 100 == 0 or step == steps - 1:
            log.info("target step %d of %d: loss %.3f", step, steps, loss.item())


def features_of(hidden_states: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Join the outputs of TARGET_LAYER_IDS: [b, T, m*H]; hidden_states[0] is the embedding."""
    return torch.cat([hidden_states[i + 1] for i in TARGET_LAYER_IDS], -1)


@torch.no_grad()
def continue_tokens(
    target: Qwen3ForCausalLM, ids: torch.Tensor, length: int, temperature: float
) -> torch.Tensor:
    """Continue [N, P] prompts to [N, length]: greedy at temperature 0, else sampled."""
    cache = DynamicCache(config=target.config)
    rows = [ids]
    step = ids
    for _ in range(length - ids.shape[1]):
        logits = target(step, past_key_values=cache, logits_to_keep=1).logits[:, -1]
        if temperature > 0:
            step = torch.multinomial((logits / temperature).softmax(-1), 1)
        else:
            step = logits.argmax(-1, keepdim=True)
        rows.append(step)
    return torch.cat(rows, 1)


def own_continuations(
    target: Qwen3ForCausalLM, tokenizer: Tokenizer, seed: int, count: int, length: int
) -> torch.Tensor:
    """Let the target continue the beginnings of training documents: [5 * count, length] int64.

    Four parts are greedy, from 16, 24, 32 and 96 tokens on; one is sampled at temperature 0.8.
    """
    rng = random.Random(seed)
    source = documents(seed, held_out=False)
    parts = []
    for prompt_length, temperature in ((16, 0.0), (24, 0.0), (32, 0.0), (96, 0.0), (16, 0.8)):
        prompts: list[list[int]] = []
        while len(prompts) < count:
            text = as_text(next(source), chat=rng.random() < CHAT_SHARE)
            ids = tokenizer.encode(text).ids[:prompt_length]
            if len(ids) == prompt_length:
                prompts.append(ids)
        parts.append(continue_tokens(target, torch.tensor(prompts), length, temperature))
    return torch.cat(parts)


def save_target(target: Qwen3ForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the target's folder: weights, config, generation config, tokenizer, chat template."""
    target.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=END_ID, eos_token_id=[END_ID, IM_END_ID], pad_token_id=END_ID
    )
    target.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    facts = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIALS[END_ID],
        "pad_token": SPECIALS[END_ID],
        "mask_token": SPECIALS[MASK_ID],
        "model_max_length": target.config.max_position_embeddings,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(facts, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
