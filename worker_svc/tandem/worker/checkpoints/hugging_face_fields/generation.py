"""The fields of `generation_config.json`."""

from __future__ import annotations

from tandem.worker.checkpoints.known_fields import NEUTRAL, USED, Only, Table, rules

# What generation starts from. Of these, a server's requests state the lengths; beams and assistants are other ways of
# decoding, which a request does not have.
GENERATION: Table = (
    rules(USED, "bos_token_id eos_token_id do_sample temperature top_p min_p top_k repetition_penalty")
    | rules(
        NEUTRAL,
        "_from_model_config transformers_version _commit_hash trust_remote_code",
        "max_length max_new_tokens max_time pad_token_id decoder_start_token_id early_stopping length_penalty",
        "use_cache cache_implementation cache_config max_cache_len low_memory prefill_chunk_size",
        "return_dict_in_generate output_attentions output_hidden_states output_scores output_logits",
        "renormalize_logits remove_invalid_values",
        "is_assistant num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold",
        "assistant_early_exit assistant_lookbehind assistant_ensemble_weight target_lookbehind",
        "prompt_lookup_num_tokens max_matching_ngram_size speculation_type use_mtp",
        "compile_config disable_compile continuous_batching_config",
    )
    | rules(Only((1,)), "num_beams num_beam_groups num_return_sequences")
    | rules(Only((0,)), "min_length min_new_tokens no_repeat_ngram_size encoder_no_repeat_ngram_size")
    | rules(Only((0,)), "epsilon_cutoff eta_cutoff penalty_alpha diversity_penalty")
    | rules(Only((0,)), "frequency_penalty presence_penalty")  # of ERNIE 4.5's files; transformers does not know them
    | rules(Only((1,)), "typical_p encoder_repetition_penalty guidance_scale")
    | rules(Only(([],)), "suppress_tokens begin_suppress_tokens bad_words_ids stop_strings")
    | rules(Only((False,)), "token_healing")
    | rules(
        Only(),
        "top_h forced_bos_token_id forced_eos_token_id exponential_decay_length_penalty sequence_bias",
        "watermarking_config dola_layers constraints force_words_ids",
    )
)
