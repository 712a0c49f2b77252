"""A byte-level tokenizer without merges: every text has ids and comes back from them."""

from __future__ import annotations

import json
from pathlib import Path

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")  # ids 256 to 259
NUM_TOKENS = 256 + len(SPECIAL)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json, generation_config.json and the chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[0]}
    _write(folder / "tokenizer_config.json", config)
    _write(folder / "generation_config.json", {"eos_token_id": 256})
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")


def _write(path: Path, content: dict[str, int] | dict[str, str]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
