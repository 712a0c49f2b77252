"""Keys of a config that nothing reads, and the names that a config may choose from.

Config keys that do not change what a model computes, each with the reason.

Every other key that nothing reads is refused; `draftrt.export.config.meaning` tells which of those
may be declared to be without effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from draftrt.errors import ChoiceError
from draftrt.export.config.meaning import is_off, meaning_of
from draftrt.export.config.reader import Facts


def refuse_unknown(facts: Facts, body: str, ignore: frozenset[str]) -> None:
    """Add findings for keys that nothing has read, and for names of keys that there are not.

    Called when everything else has been read.

    Args:
        facts: the config.
        body: where the keys of the layers are, empty or ending in a dot.
        ignore: unknown keys the user declares to be without effect.
    """
    for key, value in facts.table(body[:-1]).items() if body else ():
        if facts.config.get(key) == value:  # some exporters repeat the layers' keys at the top
            facts.raw(key)
    scopes = ["", "dflash_config", "dspark_config", *([body[:-1]] if body else [])]
    unknown = [key for scope in scopes for key in facts.unknown_keys(scope, HARMLESS | INHERITED)]
    refuse_keys(facts, unknown, ignore)


def refuse_keys(
    facts: Facts, unknown: Sequence[str], ignore: frozenset[str], *, of: str = "", hint: str = ""
) -> None:
    """Add findings for unknown keys, and for names in ``ignore`` that may not stand there.

    A key that by its name decides what is computed (`draftrt.export.config.meaning`) is never
    ignored, and no hint offers to.

    Args:
        facts: the config.
        unknown: dotted paths of keys that nothing has read.
        ignore: those that the user declares to be without effect.
        of: whose keys they are, as ``--ignore-key`` has it before a name: ``target:``, or empty.
        hint: another way out, for a key that may not be ignored.
    """
    unknown = [key for key in unknown if not is_off(key, facts.raw(key))]
    decisive = {key: topic for key in unknown if (topic := meaning_of(key))}
    if refused := [key for key in decisive if key not in ignore]:
        facts.error(
            "keys that this version does not read, and that by their names change what is "
            f"computed: {', '.join(f'{key} ({decisive[key]})' for key in refused)}",
            hint or "without them it would be another model; use the publisher's own runtime",
            unsupported=True,
        )
    if refused := [key for key in unknown if key not in decisive and key not in ignore]:
        facts.error(
            f"keys that this version does not know: {refused}",
            f"if a key has no effect on the forward pass, accept it with --ignore-key {of}NAME",
        )
    _check_ignored(facts, unknown, decisive, ignore, of)


def _check_ignored(
    facts: Facts,
    unknown: Sequence[str],
    decisive: Mapping[str, str],
    ignore: frozenset[str],
    of: str,
) -> None:
    """Add a finding for every name in ``ignore`` that decides something or that is not there."""
    name = facts.path.name
    for key in sorted(ignore & set(decisive)):
        facts.findings.append(
            ChoiceError(
                f"{name}: --ignore-key {of}{key}: cannot be ignored: by its name it decides "
                f"{decisive[key]}",
                hint="without it this would be another model",
            )
        )
    # A key that the list of harmless ones has taken up meanwhile may still be named.
    idle = sorted(one for one in ignore - set(unknown) if one.split(".")[-1] not in HARMLESS)
    if idle:
        choices = [of + key for key in unknown if key not in decisive]
        facts.findings.append(
            ChoiceError(
                f"{name}: --ignore-key {', '.join(of + one for one in idle)}: expected keys that "
                f"this version does not know, which are {choices or 'none'}",
                hint="what is read cannot be ignored, and what is not there need not be",
            )
        )


GROUPS: tuple[tuple[str, str], ...] = (
    (
        "names the model, its code and the versions it was written with",
        """
        architectures auto_map model_type transformers_version torch_dtype dtype name_or_path
        tokenizer_class specforge_version modelopt_version speculators_version producer license
        base_model library_name creation_time commit git_sha notes draft_model_type
        """,
    ),
    (
        "says how transformers runs a model and what it returns",
        """
        use_cache return_dict output_hidden_states output_attentions output_scores
        return_dict_in_generate chunk_size_feed_forward is_encoder_decoder is_decoder
        add_cross_attention cross_attention_hidden_size torchscript use_bfloat16 tf_legacy_loss
        pruned_heads attn_implementation experts_implementation attention_backend pretraining_tp
        has_no_defaults_at_init remove_invalid_values flex_attention use_flex_attention
        """,
    ),
    (
        "belongs to other tasks: labels, classes, tied encoders",
        """
        id2label label2id num_labels problem_type finetuning_task task_specific_params
        tie_encoder_decoder tied_encoder_decoder decoder_start_token_id
        """,
    ),
    (
        "ids and texts of tokens, and how a tokenizer pads; the tokenizer's own files say them",
        """
        pad_token_id bos_token_id eos_token_id sep_token_id cls_token_id unk_token_id bos_token
        eos_token pad_token unk_token eos_token_ids padding_side pad_to_multiple_of
        ignore_pad_tokens tokenizer_padding_side tokenizer_model_max_length add_bos_token
        add_eos_token chat_template image_token_index video_token_index
        """,
    ),
    (
        "a mark that a trainer, a converter or another runtime leaves for itself",
        """
        unsloth_fixed unsloth_version is_llama_config transformers.js_config trust_remote_code
        model_name model_id model_version keys_to_ignore_at_inference adapter_path
        for_llm_compressor
        """,
    ),
    (
        "which kernel computes attention, not what it computes",
        """
        use_flash_attn use_flash_attention use_flash_attention_2 use_sdpa use_sdpa_attention
        use_cache_kernel use_cache_quantization
        """,
    ),
    (
        "the longest text of a training or a runtime; caches have rows as max_position_embeddings "
        "and --max-context say",
        """
        max_sequence_length model_max_length max_seq_len seq_length training_seqlen
        max_model_len
        """,
    ),
    (
        "says how text is generated; draftrt takes that from its own options",
        """
        max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
        temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
        encoder_no_repeat_ngram_size bad_words_ids num_return_sequences forced_bos_token_id
        forced_eos_token_id exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
        prefix
        """,
    ),
    (
        "is about training",
        """
        initializer_range attention_dropout hidden_dropout embd_pdrop resid_pdrop dropout
        router_aux_loss_coef output_router_logits num_anchors ttt_length ttt_steps loss_decay_gamma
        loss_type loss_weights confidence_loss_weight confidence_head_alpha kd_temperature seed
        trained_with training_config training_args train_config learning_rate lr warmup_ratio
        weight_decay optimizer num_epochs batch_size max_seq_length max_anchors embed_requires_grad
        loss_decay_factor gamma selector_loss_weight block_sizes num_blocks neftune_noise_alpha
        gradient_checkpointing use_reentrant_checkpointing attn_pdrop hidden_dropout_prob
        attention_dropout_prob attention_probs_dropout_prob emb_dropout_prob residual_dropout
        classifier_dropout fp16 bf16 fp32 initializer_factor
        """,
    ),
    (
        "names the target; the one that is given is looked at instead",
        """
        target_model_type target_text_model_type target_model_path target_model_name_or_path
        target_model target_architecture verifier_name_or_path verifier
        """,
    ),
    (
        "how many drafts somebody verified, or a name for an id that is stated",
        """
        num_speculative_tokens speculative_tokens speculators_config runtime_block_size mask_token
        """,
    ),
    (
        "shows in the tensors, which are all accounted for",
        """
        tie_word_embeddings vocab_size_per_layer_input hidden_size_per_layer_input
        num_kv_shared_layers use_double_wide_mlp
        """,
    ),
    (
        "says nothing where no layer has experts, which is read from other keys",
        """
        top_k_experts moe_intermediate_size mlp_only_layers decoder_sparse_step norm_topk_prob
        """,
    ),
    (
        "says nothing where no domino head corrects the drafts, which projector_type says",
        "pure_draft_prefix_len gru_hidden_dim lambda_base_start lambda_base_decay_ratio auf",
    ),
    (
        "says nothing beside layer_types and the layers' own number of heads",
        "use_bidirectional_attention max_window_layers num_global_key_value_heads",
    ),
)
# A drafter's config is often a copy of its target's. Each of these, if it held for the drafter's
# own layers, would show in its tensors, which are all accounted for.
_INHERITED = """
attn_output_gate output_gate_type full_attention_interval linear_num_key_heads
linear_num_value_heads linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim
mamba_ssm_dtype mtp_num_hidden_layers mtp_use_dedicated_embeddings text_config vision_config
audio_config image_token_id video_token_id vision_start_token_id vision_end_token_id
"""
INHERITED = frozenset(_INHERITED.split())
REASONS = {key: reason for reason, keys in GROUPS for key in keys.split()}
HARMLESS = frozenset(REASONS)


ACTIVATIONS = ("silu", "swish", "gelu", "gelu_pytorch_tanh", "relu")  # activations.py
MARKOV_TYPES = ("vanilla", "gated", "rnn")  # dspark.py
ROPE_TYPES = (  # rope.py
    "default",
    "linear",
    "dynamic",
    "yarn",
    "llama3",
    "longrope",
    "proportional",
)


OF_TARGET = "target:"


def of_draft(keys: Iterable[str]) -> frozenset[str]:
    """Return the names that are about the drafter's config."""
    return frozenset(key for key in keys if not key.startswith(OF_TARGET))


def of_target(keys: Iterable[str]) -> frozenset[str]:
    """Return the names that are about the target's config, without ``target:``."""
    return frozenset(key.removeprefix(OF_TARGET) for key in keys if key.startswith(OF_TARGET))
