"""The small pair's drafters: a DFlash, and a DSpark with a Markov and a confidence head.

Modules are named as in the publishers' checkpoints, so a state dict is a checkpoint. Training takes
many anchors of one sequence at once. Knows nothing of text or files.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, silu
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.assets.pair_target import (
    MASK_ID,
    ROPE_THETA,
    TARGET_LAYER_IDS,
    features_of,
    training_steps,
)

NUM_DRAFT_LAYERS = 2
MARKOV_RANK = 32
NUM_ANCHORS = 20  # per sequence of a training batch
DECAY = 4.0  # the loss of draft k weighs exp(-k / DECAY): a miss makes later drafts useless

Batch = Callable[[int], torch.Tensor]
log = logging.getLogger(__name__)


def rope_tables(config: Qwen3Config, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin, each [length, head_dim], in the half-split layout."""
    exponents = torch.arange(0, config.head_dim, 2) / config.head_dim
    angles = torch.arange(length)[:, None] / ROPE_THETA**exponents
    angles = torch.cat([angles, angles], 1)
    return angles.cos(), angles.sin()


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Apply RoPE to x [..., heads, head_dim] with tables [..., head_dim]."""
    left, right = x.chunk(2, -1)
    return x * cos.unsqueeze(-2) + torch.cat([-right, left], -1) * sin.unsqueeze(-2)


class Attention(nn.Module):
    """A block sees the context before its anchor, and itself in both directions."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        assert config.head_dim is not None
        assert config.num_key_value_heads is not None
        self.head_dim = config.head_dim
        width = config.num_attention_heads * self.head_dim
        kv_width = config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self.head_dim, config.rms_norm_eps)

    def keys_values(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Project rows [..., H] to keys and values [..., kv heads, head_dim]."""
        keys = self.k_proj(x).unflatten(-1, (-1, self.head_dim))
        values = self.v_proj(x).unflatten(-1, (-1, self.head_dim))
        return rotated(self.k_norm(keys), cos, sin), values

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor,
        anchors: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Attend from blocks x [b, A, B, H] to context [b, T, H]; anchors [b, A] are positions."""
        num_anchors, block = x.shape[1:3]
        length = context.shape[1]
        places = anchors[..., None] + torch.arange(block)  # [b, A, B]
        cos, sin = rope[0][places], rope[1][places]
        queries = rotated(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim))), cos, sin)
        block_keys, block_values = self.keys_values(x, cos, sin)
        keys, values = self.keys_values(context, rope[0][:length], rope[1][:length])
        # heads of one group share keys; rows of a block and heads of a group are laid side by side
        queries = queries.view(*x.shape[:3], keys.shape[-2], -1, self.head_dim)
        queries = queries.permute(0, 3, 1, 4, 2, 5)  # [b, g, A, r, B, d]
        rows = queries.shape[3] * block
        to_context = queries.flatten(2, 4) @ keys.permute(0, 2, 3, 1)  # [b, g, A*r*B, T]
        to_context = to_context.view(*to_context.shape[:2], num_anchors, rows, length)
        hidden = torch.arange(length) >= anchors[..., None]  # [b, A, T]
        to_context = to_context.masked_fill(hidden[:, None, :, None], float("-inf"))
        to_block = queries.flatten(3, 4) @ block_keys.permute(0, 3, 1, 4, 2)  # [b, g, A, r*B, B]
        scores = torch.cat([to_context, to_block], -1) * self.head_dim**-0.5
        weights = scores.softmax(-1)
        mixed = weights[..., :length].flatten(2, 3) @ values.transpose(1, 2)
        mixed = mixed.unflatten(2, (num_anchors, rows))
        mixed = mixed + weights[..., length:] @ block_values.permute(0, 3, 1, 2, 4)
        mixed = mixed.unflatten(3, (-1, block)).permute(0, 2, 4, 1, 3, 5)  # [b, A, B, g, r, d]
        output: torch.Tensor = self.o_proj(mixed.flatten(3))
        return output


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [..., H] to [..., H]."""
        output: torch.Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class Layer(nn.Module):
    """One pre-norm decoder layer of the drafter; the context passes by unchanged."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor,
        anchors: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Map block rows [b, A, B, H] to the same shape."""
        x = x + self.self_attn(self.input_layernorm(x), context, anchors, rope)
        output: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return output


class DFlash(nn.Module):
    """Row i of the block names the token at its own place; both token tables are the target's."""

    block_size = 8
    first_row = 1  # the first row that yields a draft
    shift = 0  # row i names the token at anchor + i + shift

    def __init__(self, target: Qwen3ForCausalLM) -> None:
        super().__init__()
        config = target.config
        self.layers = nn.ModuleList(Layer(config) for _ in range(NUM_DRAFT_LAYERS))
        self.fc = nn.Linear(
            len(TARGET_LAYER_IDS) * config.hidden_size, config.hidden_size, bias=False
        )
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.norm.weight.data.copy_(target.model.norm.weight.data)
        self._table: list[torch.Tensor] = [
            target.model.embed_tokens.weight.detach()
        ]  # in a list: not part of the checkpoint
        self._rope = rope_tables(config, config.max_position_embeddings + self.block_size)

    def block_rows(
        self, features: torch.Tensor, tokens: torch.Tensor, anchors: torch.Tensor
    ) -> torch.Tensor:
        """Turn features [b, T, m*H], anchor tokens and positions [b, A] into rows [b, A, B, H]."""
        masks = torch.full((*tokens.shape, self.block_size - 1), MASK_ID)
        x = self._table[0][torch.cat([tokens[..., None], masks], -1)]
        context = self.hidden_norm(self.fc(features))
        for layer in self.layers:
            x = layer(x, context, anchors, self._rope)
        rows: torch.Tensor = self.norm(x)
        return rows

    def logits(self, rows: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """Score tokens for rows [..., H]; DFlash does not look at the previous tokens [...]."""
        return rows @ self._table[0].T

    def confidence_loss(
        self, rows: torch.Tensor, previous: torch.Tensor, agreement: torch.Tensor
    ) -> torch.Tensor:
        """DFlash has no confidence head."""
        return torch.zeros(())


class DSpark(DFlash):
    """Row i names the token after its own place, given the token before; ships its own tables."""

    block_size = 7
    first_row = 0
    shift = 1

    def __init__(self, target: Qwen3ForCausalLM) -> None:
        super().__init__(target)
        vocab_size, width = self._table[0].shape
        self.embed_tokens = nn.Embedding(vocab_size, width)
        self.embed_tokens.weight.data.copy_(self._table[0])
        self.embed_tokens.requires_grad_(False)
        self.lm_head = nn.Linear(width, vocab_size, bias=False)
        self.lm_head.weight.data.copy_(self._table[0])
        self.lm_head.requires_grad_(False)
        before = nn.Embedding(vocab_size, MARKOV_RANK)
        after = nn.Linear(MARKOV_RANK, vocab_size, bias=False)
        nn.init.normal_(before.weight, std=0.1)
        nn.init.zeros_(after.weight)
        self.markov_head = nn.ModuleDict({"markov_w1": before, "markov_w2": after})
        self.confidence_head = nn.ModuleDict({"proj": nn.Linear(width + MARKOV_RANK, 1)})

    def logits(self, rows: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """Score tokens for rows [..., H] after the previous tokens [...]."""
        bias = self.markov_head["markov_w2"](self.markov_head["markov_w1"](previous))
        scores: torch.Tensor = self.lm_head(rows) + bias
        return scores

    def confidence(self, rows: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """Return the logit [...] of the chance that the draft of each row is accepted."""
        inputs = torch.cat([rows, self.markov_head["markov_w1"](previous)], -1).detach()
        chance: torch.Tensor = self.confidence_head["proj"](inputs).squeeze(-1)
        return chance

    def confidence_loss(
        self, rows: torch.Tensor, previous: torch.Tensor, agreement: torch.Tensor
    ) -> torch.Tensor:
        """Compare the confidence with the overlap of draft and target distributions, both [...]."""
        return binary_cross_entropy_with_logits(self.confidence(rows, previous), agreement)


@dataclass(frozen=True)
class Lesson:
    """One training batch with what the frozen target made of it.

    Attributes:
        tokens: [b, T] int64.
        features: [b, T, m*H] float32, outputs of TARGET_LAYER_IDS in order.
        target: [b, T, V] float32 probabilities; row t is about token t + 1.
        anchors: [b, A] int64 positions; every block of 8 lies inside the sequence.
    """

    tokens: torch.Tensor
    features: torch.Tensor
    target: torch.Tensor
    anchors: torch.Tensor


@torch.no_grad()
def make_lesson(
    target: Qwen3ForCausalLM, tokens: torch.Tensor, generator: torch.Generator
) -> Lesson:
    """Run the target over [b, T] tokens and draw anchors."""
    output = target(tokens, output_hidden_states=True)
    shape = (tokens.shape[0], NUM_ANCHORS * tokens.shape[1] // 256)
    anchors = torch.randint(4, tokens.shape[1] - DFlash.block_size, shape, generator=generator)
    return Lesson(tokens, features_of(output.hidden_states), output.logits.softmax(-1), anchors)


def loss_of(drafter: DFlash, lesson: Lesson) -> torch.Tensor:
    """Cross-entropy of every draft, early ones weighing more, plus the confidence loss."""
    batch = torch.arange(lesson.tokens.shape[0])[:, None, None]
    places = (
        lesson.anchors[..., None]
        + torch.arange(drafter.first_row, drafter.block_size)
        + drafter.shift
    )
    labels, previous = (
        lesson.tokens[batch, places],
        lesson.tokens[batch, places - 1],
    )  # [b, A, drafts]
    tokens = lesson.tokens.gather(1, lesson.anchors)
    rows = drafter.block_rows(lesson.features, tokens, lesson.anchors)[:, :, drafter.first_row :]
    logits = drafter.logits(rows, previous)
    weights = torch.exp(-torch.arange(logits.shape[2]) / DECAY)
    losses = cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none").view(
        labels.shape
    )
    agreement = torch.minimum(logits.detach().softmax(-1), lesson.target[batch, places - 1]).sum(-1)
    return (losses * weights).mean() / weights.mean() + drafter.confidence_loss(
        rows, previous, agreement
    )


def train_drafters(
    target: Qwen3ForCausalLM, drafters: list[DFlash], batches: Batch, seed: int, steps: int
) -> None:
    """Train every drafter on the same lessons; `batches(step)` gives [b, T] tokens."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.ModuleList(drafters)
    for step in training_steps(model, steps, peak=1e-2):
        lesson = make_lesson(target, batches(step), generator)
        losses = [loss_of(drafter, lesson) for drafter in drafters]
        torch.autograd.backward(losses)
        if step % 100 == 0 or step == steps - 1:
            values = ", ".join(f"{loss.item():.3f}" for loss in losses)
            log.info("drafters step %d of %d: losses %s", step, steps, values)
