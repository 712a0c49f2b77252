"""Config keys that do not change what a drafter computes; every other unknown key is refused."""

from __future__ import annotations

TRANSFORMERS = frozenset(
    """
    architectures auto_map model_type transformers_version torch_dtype dtype use_cache return_dict
    output_hidden_states output_attentions chunk_size_feed_forward is_encoder_decoder is_decoder
    add_cross_attention cross_attention_hidden_size id2label label2id num_labels problem_type
    pad_token_id bos_token_id eos_token_id sep_token_id decoder_start_token_id prefix
    initializer_range attention_dropout hidden_dropout embd_pdrop resid_pdrop dropout
    pretraining_tp tie_word_embeddings tie_encoder_decoder tied_encoder_decoder pruned_heads
    torchscript use_bfloat16 tf_legacy_loss finetuning_task tokenizer_class task_specific_params
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores
    return_dict_in_generate forced_bos_token_id forced_eos_token_id remove_invalid_values
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens attn_implementation
    name_or_path experts_implementation router_aux_loss_coef output_router_logits
    vocab_size_per_layer_input hidden_size_per_layer_input num_kv_shared_layers
    use_double_wide_mlp top_k_experts moe_intermediate_size use_bidirectional_attention
    max_window_layers num_global_key_value_heads mlp_only_layers decoder_sparse_step
    norm_topk_prob
    """.split()
)

TRAINING = frozenset(
    """
    num_anchors ttt_length ttt_steps loss_decay_gamma loss_type loss_weights confidence_loss_weight
    confidence_head_alpha kd_temperature seed trained_with training_config training_args
    train_config learning_rate lr warmup_ratio weight_decay optimizer num_epochs batch_size
    max_seq_length max_anchors target_model_type target_text_model_type target_model_path
    target_model_name_or_path target_model target_architecture draft_model_type
    verifier_name_or_path verifier speculators_version speculators_config has_no_defaults_at_init
    embed_requires_grad norm_before_residual norm_before_fc specforge_version modelopt_version
    producer license base_model library_name creation_time commit git_sha notes
    num_speculative_tokens speculative_tokens block_sizes loss_decay_factor gamma num_blocks
    flex_attention use_flex_attention attention_backend
    """.split()
)

HARMLESS = TRANSFORMERS | TRAINING
