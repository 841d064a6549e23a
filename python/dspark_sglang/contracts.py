"""What of SGLang 0.5.23 must be as it is: the shape of each function and class that we wrap, call or derive from.

Names that we only import, or read from what we import, are not listed: `upstream` finds those in our own sources. This
module imports nothing of SGLang or of ours, so that it can be read beside any release.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Contract:
    """One function or class of SGLang and what of its shape is relied on.

    Attributes
    ----------
    name : str
        Dotted: module, then class, then attribute.
    use : str
        What of ours stands on it.
    parameters : tuple of str
        Names of its first parameters, in order, ``self`` aside.
    keywords : tuple of str
        Parameters that are given by name.
    members : tuple of str
        Attributes, fields or methods that must be there.
    ours : str
        File and class of ours that derives from it, ``worker.py:DsparkWorker``: it must have every method that is
        asked for.
    """

    name: str
    use: str
    parameters: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    ours: str = ""


_SCHEDULER = "sglang.srt.managers.scheduler_components"
_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"

# One for each function in `hooks.HOOKS`.
WRAPPED = (
    Contract("sglang.srt.arg_groups.speculative_hook._handle_dspark", "DSPARK on a CPU", ("server_args",)),
    Contract(
        "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker",
        "our worker under the name DSPARK",
        ("server_args",),
    ),
    Contract(
        "sglang.srt.mem_cache.allocation.assign_req_to_token_pool_func",
        "slots without Triton",
        ("req_pool_indices", "req_to_token", "start_offset", "end_offset", "out_cache_loc"),
    ),
    Contract("sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len", "room at the context end"),
    Contract(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._create_tokenized_object",
        "refusing what is not exact",
        ("obj",),
    ),
    Contract(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._send_one_request",
        "a seed for each of n answers",
        ("tokenized_obj",),
    ),
    Contract(
        f"{_SCHEDULER}.internal_state.SchedulerInternalStateController.set_internal_state",
        "POST /dspark/policy",
        ("recv_req",),
    ),
    Contract(
        "sglang.srt.managers.schedule_batch.Req.update_finish_state",
        "ending an answer at the first of its ends",
        ("new_accepted_len",),
    ),
    Contract(
        f"{_SCHEDULER}.output_streamer.SchedulerOutputStreamer.stream_output",
        "counting tokens that leave",
        ("reqs", "return_logprob", "skip_req"),
    ),
    Contract(
        "sglang.srt.managers.scheduler.Scheduler.send_abort_output", "counting aborted requests", ("abort_req", "req")
    ),
    Contract("sglang.srt.utils.common.add_prometheus_middleware", "names of metrics", ("app",)),
    *(
        Contract(f"{_UPDATER}.{name}", "renewing packed weights")
        for name in (
            "update_weights_from_disk",
            "load_weights_from_distributed",
            "update_weights_from_tensor",
            "update_weights_from_ipc",
        )
    ),
)

_MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
_IO = "sglang.srt.managers.io_struct"

# One for each name of SGLang that is assigned to in our sources, in place of hooks: before the server process serves.
PATCHED = (
    Contract(
        "sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase.handle_request",
        "refusing unknown models, mending answers",
        ("request", "raw_request"),
    ),
    Contract(
        "sglang.srt.entrypoints.openai.serving_responses.OpenAIServingResponses.create_responses",
        "the same in the Responses API",
        ("request", "raw_request"),
    ),
    Contract(
        f"{_MANAGER}._create_tokenized_object",
        "bounding what is sent to the scheduler",
        ("obj", "input_text", "input_ids"),
    ),
    Contract(f"{_IO}.GenerateReqInput.normalize_batch_and_arguments", "bounding n"),
    Contract(f"{_MANAGER}._validate_one_request", "refusing ids outside of the vocabulary", ("obj", "input_ids")),
    Contract(f"{_MANAGER}.sigterm_watchdog", "draining with a deadline"),
    Contract(f"{_IO}.GenerateReqInput.__getitem__", "refusing uneven batches", ("i",)),
    Contract(f"{_IO}.EmbeddingReqInput.__getitem__", "refusing uneven batches", ("i",)),
    Contract(
        "sglang.srt.utils.auth.decide_request_auth",
        "answering 401 to keys that are not ASCII",
        keywords=("method", "path", "authorization_header", "api_key", "admin_api_key", "auth_level"),
    ),
    Contract("sglang.srt.entrypoints.http_server.requests", "warming up through the gate", members=("post",)),
    *(
        Contract(f"sglang.srt.entrypoints.{module}.redact_watermark_secrets", "hiding keys", ("value",))
        for module in ("engine", "http_server")
    ),
    Contract("sglang.srt.arg_groups.speculative_hook.resolving_view", "resolving DSPARK on a CPU", ("server_args",)),
)

_FORWARD_BATCH = (
    *("forward_mode", "batch_size", "input_ids", "req_pool_indices", "seq_lens", "seq_lens_cpu", "orig_seq_lens"),
    *("out_cache_loc", "seq_lens_sum", "positions", "spec_algorithm", "spec_info", "capture_hidden_mode"),
    "global_forward_mode",
)
_PLATFORM = (
    *("_enum", "device_name", "device_type", "capabilities", "is_pin_memory_available", "apply_server_args_defaults"),
    *("get_default_attention_backend", "get_default_speculative_draft_attention_backend"),
    *("supports_speculative_algorithm", "supports_speculative_draft_attention_backend", "get_kv_pool_cls"),
    *("get_speculative_worker_cls", "post_load_model", "init_backend"),
)
_BATCH = (
    *("reqs", "seq_lens", "seq_lens_cpu", "seq_lens_sum", "req_pool_indices", "req_pool_indices_cpu", "out_cache_loc"),
    *("sampling_info", "spec_info", "forward_mode", "return_logprob", "prefix_lens", "extend_lens"),
    "is_extend_in_batch",
)
_REQUEST = (
    *("rid", "sampling_params", "origin_input_ids", "output_ids", "finished", "finished_len", "finished_reason"),
    *("is_retracted", "grammar", "tokenizer", "eos_token_ids", "custom_logit_processor", "reasoning_tokens"),
    *("_check_str_based_finish", "_check_token_based_finish"),
)
_SAMPLING = (
    *("temperatures", "top_ps", "top_ks", "min_ps", "is_all_greedy", "is_any_greedy", "need_top_p_sampling"),
    *("need_top_k_sampling", "need_min_p_sampling", "has_custom_logit_processor", "custom_params"),
    *("acc_additive_penalties", "acc_scaling_penalties"),
)
_RUNNER = (
    *("model", "model_config", "attn_backend", "req_to_token_pool", "token_to_kv_pool", "dtype", "sampler"),
    *("spec_algorithm", "layer_info", "kv_index_translator", "prepare_dummy_forward_batch"),
)

# What is called, constructed, read or derived from.
USED = (
    Contract(
        "sglang.srt.plugins.hook_registry.HookRegistry.register",
        "registering every hook",
        ("target", "hook", "hook_type"),
    ),
    Contract("sglang.srt.plugins.hook_registry.HookRegistry", "knowing that hooks took", members=("_patched",)),
    Contract("sglang.srt.plugins.hook_registry.HookType", "hooks.py", members=("AROUND", "BEFORE", "AFTER")),
    Contract(
        "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation",
        "prefill and verification by the target",
        ("batch", "forward_batch"),
        ("is_verify", "capture_hidden_mode"),
    ),
    Contract(
        "sglang.srt.managers.utils.GenerationBatchResult",
        "what a decode step returns",
        keywords=(
            *("logits_output", "next_token_ids", "accept_lens", "block_accept_lens", "cap_lens", "next_draft_input"),
            *("new_seq_lens", "speculative_num_draft_tokens", "can_run_cuda_graph"),
        ),
    ),
    Contract(
        "sglang.srt.speculative.dflash_info_v2.DFlashDraftInputV2",
        "anchors from step to step",
        keywords=("topk_p", "topk_index", "bonus_tokens", "new_seq_lens", "hidden_states"),
    ),
    Contract(
        "sglang.srt.speculative.dflash_info.DFlashVerifyInput.prepare_for_verify",
        "the batch of a verification",
        ("batch", "target_worker"),
    ),
    Contract(
        "sglang.srt.layers.logprob_processor.compute_spec_logprobs",
        "logprobs of accepted tokens",
        ("batch", "logits_output", "predict"),
        ("chain_stride",),
    ),
    Contract(
        "sglang.srt.model_executor.forward_batch_info.ForwardBatch",
        "timing steps at start",
        keywords=_FORWARD_BATCH,
        members=("mark_forward_metadata_ready",),
    ),
    Contract(
        "sglang.srt.layers.attention.base_attn_backend.AttentionBackend",
        "the CPU attention backend",
        members=("init_forward_metadata", "forward_extend", "forward_decode"),
        ours="attention/cpu.py:CpuRaggedBackend",
    ),
    Contract(
        "sglang.srt.speculative.base_spec_worker.BaseSpecWorker", "deriving our worker", ours="worker.py:DsparkWorker"
    ),
    Contract("sglang.srt.platforms.interface.SRTPlatform", "the CPU platform", members=_PLATFORM),
    Contract("sglang.srt.managers.schedule_batch.ScheduleBatch", "reading the running batch", members=_BATCH),
    Contract("sglang.srt.managers.schedule_batch.Req", "reading a request", members=_REQUEST),
    Contract("sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo", "sampling settings", members=_SAMPLING),
    Contract("sglang.srt.model_executor.model_runner.ModelRunner", "reaching the target", members=_RUNNER),
    Contract("sglang.srt.mem_cache.memory_pool.ReqToTokenPool", "slots", members=("req_to_token", "req_generation")),
    Contract(
        "sglang.srt.entrypoints.http_server.launch_server",
        "starting the server",
        ("server_args",),
        ("execute_warmup_func", "launch_callback"),
    ),
    Contract("sglang.srt.entrypoints.http_server._execute_server_warmup", "warming up", ("server_args",)),
    Contract(
        _MANAGER,
        "draining, readiness, model names, adapters",
        members=(
            *("rid_to_state", "gracefully_exit", "signal_handler_class", "auto_create_handle_loop", "abort_request"),
            *("server_status", "served_model_name", "model_config", "is_ready", "is_healthy"),
            *("enable_lora", "lora_registry", "context_len", "_validate_one_request"),
        ),
    ),
    Contract(f"{_MANAGER}.abort_request", "the end of a drain", keywords=("abort_all",)),
    Contract(f"{_MANAGER}.auto_create_handle_loop", "draining before the first request"),
    Contract(f"{_MANAGER}.get_internal_state", "GET /dspark/state"),
    Contract(f"{_MANAGER}.set_internal_state", "POST /dspark/policy", ("obj",)),
    Contract("sglang.srt.managers.tokenizer_manager.SignalHandler.sigterm_handler", "draining", ("signum", "frame")),
    Contract(
        "sglang.srt.utils.auth._get_auth_level_from_app_and_scope", "who may do what while starting", ("app", "scope")
    ),
    Contract("sglang.srt.utils.auth.auth_level", "guarding our routes", ("level",)),
    Contract("sglang.srt.utils.common.kill_process_tree", "ending every process", ("parent_pid", "include_parent")),
    Contract(
        "sglang.srt.managers.io_struct",
        "checking what is sent to the scheduler",
        members=("msgpack_encode", "msgpack_decode", "_USE_PICKLE_IPC", "PositionalEmbeds"),
    ),
    Contract("sglang.srt.server_args.ServerArgs", "resolving flags", members=("resolve_once", "add_cli_args")),
)
