"""Frames of a traceback to the phase and the operation in which a run failed.

The table is knowledge about public libraries: which function or source line reveals which phase. Outer frames decide
between evaluation, saving and training; the innermost frames name the operation. Words alone prove nothing: "gradient"
and "attention" stand in many frames, so each rule looks at one field (function, path or code) of one frame.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .facts import Frame


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the program: a phase of the contract, an operation, and the frame that shows each."""

    phase: str = "unknown"
    operation: str | None = None
    phase_frame: Frame | None = None
    operation_frame: Frame | None = None


def _any(field: str, pattern: str) -> tuple[str, re.Pattern[str]]:
    return field, re.compile(pattern)


# Outermost first: the first rule that any frame fulfils names the phase. ``depth`` limits a rule to the innermost frames.
_PHASES: tuple[tuple[str, int | None, tuple[tuple[str, re.Pattern[str]], ...]], ...] = (
    # A wrapper's constructor copies the parameters that rank 0 has to the others: the model is still being set up.
    ("load", 4, (_any("function", r"^(?:_sync_module_states|_sync_params_and_buffers|_sync_buffers_and_params)$"),)),
    (
        "comm",
        2,
        (
            _any("path", r"torch/distributed/(?!fsdp|_|tensor|checkpoint|algorithms)|distributed_c10d|/nccl"),
            _any("code", r"\bdist\.(?:all_|reduce|broadcast|barrier|gather|scatter)"),
        ),
    ),
    (
        "data",
        3,
        (
            _any("path", r"torch/utils/data/|data_loader|dataloader\.py"),
            _any("function", r"^(?:_try_get_(?:data|batch)|default_collate|collate_fn|pin_memory|__getitem__)$"),
        ),
    ),
    (
        "checkpoint",
        None,
        (
            _any(
                "function",
                r"^(?:_?save_(?:checkpoint|model|pretrained|state|to_state_dict|optimizer_and_scheduler)\w*|_save|(?:full_|_full_|get_|_get_)?(?:model_)?state_dict\w*|_save_to_state_dict|consolidate\w*|undo_layout)$",
            ),
            _any("code", r"torch\.save\(|\.save_pretrained\(|save_checkpoint\("),
        ),
    ),
    (
        "eval",
        None,
        (
            _any(
                "function",
                r"^_?(?:do_)?(?:eval(?:uate|uation)?|valid(?:ate|ation)?|val)(?:[_A-Z]\w*|Val)?$|^epochVal$|^(?:single|multi)_gpu_test$|^whole_inference$|^prediction_(?:loop|step)$|^_?test(?:_(?:step|epoch|loop|one_epoch))?$|^run_(?:eval|validation)\w*$",
            ),
            _any(
                "code",
                # A training function may be handed the validation data; a model that is called on it evaluates.
                r"\b(?:evaluate|validate|evaluation_loop|run_validation)\(|\b(?:model|net|network|self)\w*\([^)]*\b(?:(?:x|X|y|data|inputs?|images?|batch)_(?:test|val|valid|dev)|(?:val|valid|test|eval)_(?:batch|data|images|inputs))\b|\bin [^:]*\b(?:val|valid|test|eval)_?(?:data)?loader\b",
            ),
        ),
    ),
    (
        "generate",
        None,
        (_any("function", r"^(?:generate|_sample|_?beam_search|_?greedy_search|sample_sequence|\w+_for_generation)$"),),
    ),
    (
        "load",
        None,
        (
            _any(
                "function",
                r"^_?(?:load|restore|resume)(?:_(?:state_dict|checkpoint|model|weights|pretrained|optimizer|from|state|best)\w*)?$|^(?:_cuda_deserialize|persistent_load|default_restore_location)$",
            ),
            _any("path", r"torch/serialization\.py"),
            _any("code", r"torch\.load\("),
        ),
    ),
    (
        "optimizer",
        None,
        (
            _any("path", r"torch/optim/(?!lr_scheduler)|bitsandbytes/optim|apex/optimizers|grad_scaler\.py"),
            _any("code", r"\b(?:opt|optim|optimizer)\w*\.step\("),
            _any("function", r"^(?:_take_model_step|_maybe_opt_step|optimizer_step|_optimizer_step|unscale_\w*)$"),
        ),
    ),
    (
        "backward",
        None,
        (
            _any("code", r"\.backward\(|autograd\.grad\("),
            _any("function", r"^(?:backward|_engine_run_backward|run_backward|_do_backward|backward_extended)$"),
        ),
    ),
    (
        "load",
        None,
        (
            _any(
                "function",
                r"^(?:from_pretrained|set_module_tensor_to_device|initialize_cache|_allocate_kv_cache|convert|_apply|prepare_model\w*|build_model|create_model|init_model)$",
            ),
            _any("path", r"accelerate/utils/modeling\.py"),
            _any("code", r"\.from_pretrained\(|\bmodel\w*\s*=.*\.(?:to|cuda)\(|\bmodel\.(?:to|cuda)\("),
        ),
    ),
    (
        "loss",
        4,
        (
            _any("code", r"\b(?:\w*cross_entropy|nll_loss|CrossEntropyLoss|loss_fct|criterion)\("),
            _any("path", r"torch/nn/modules/loss\.py|(?:^|/)loss(?:es)?\.py$|/losses/|/assigners/|iou_calculators/"),
            _any(
                "function",
                r"^(?:\w*cross_entropy|nll_loss|loss|loss_\w+|(?!_?compute_loss$)\w+_loss(?:es)?|get_targets|assign|bbox_overlaps|pairwise_iou|box_iou)$",
            ),
        ),
    ),
    (
        "forward",
        None,
        (
            _any(
                "function",
                r"^(?:_?forward\w*|_call_impl|_wrapped_call_impl|__call__|training_step|_?compute_loss|train_batch|train_step)$",
            ),
            _any("code", r"\b(?:self\.)?(?:model|net|network)\w*\(|\bloss\w*\s*=(?!=)"),
        ),
    ),
    ("load", 3, (_any("function", r"^__init__$"),)),
)

# Innermost first: the first frame that fulfils any rule names the operation.
_OPERATIONS: tuple[tuple[str, tuple[tuple[str, re.Pattern[str]], ...]], ...] = (
    # These read from a peer how much to allocate; what they make of their own object is another function's frame.
    ("object-collective", (_any("function", r"^(?:all_gather_object|gather_object|(?:broadcast|scatter|recv)_object\w*)$"),)),
    (
        "attention-fused",
        (
            _any("code", r"scaled_dot_product_attention|flash_attn\w*\(|memory_efficient_attention|xformers\.ops"),
            _any("path", r"flash_attn/|xformers/ops"),
            _any("function", r"^(?:_flash_attention\w*|sdpa_attention_forward|memory_efficient_attention\w*)$"),
        ),
    ),
    (
        "attention-scores",
        (
            _any(
                "code",
                r"(?:matmul|bmm|baddbmm)\(\s*(?:\w*q\w*|theta\w*)\b.*\b(?:\w*k\w*|phi\w*)\b|\bq\w*\s*@\s*k\w*|einsum\([^)]*\bb?h?[nqid]+\b.*->.*[ijqks]{2}|(?:attn|attention)_?(?:weights?|scores?|probs?|logits|mat\w*|w|map)\b.*(?:softmax|matmul|@|bmm|masked_fill|dropout|transpose|\+)|softmax\([^)]*(?:attn|attention|scores|sim)\b|\b(?:scores|sim|attn)\s*=.*(?:@|matmul|softmax|einsum)|sim\.softmax",
            ),
            _any(
                "function",
                r"^(?:get_attention_scores|multi_head_attention_forward|eager_attention_forward|_attn|_scaled_dot_product_attention)$",
            ),
        ),
    ),
    (
        "attention-mask",
        (
            _any(
                "function",
                r"^(?:_expand_mask|_prepare_\w*attention_mask|_update_causal_mask|and_mask|make_causal_mask|_make_causal_mask|create_causal_mask|get_extended_attention_mask)$",
            ),
            _any("path", r"masking_utils\.py|modeling_attn_mask_utils\.py"),
            _any("code", r"causal_mask\s*=|attn_?mask\s*=|attention_mask\s*=.*(?:expand|\[:)"),
        ),
    ),
    (
        "loss",
        (
            _any(
                "function",
                r"^(?:cross_entropy|nll_loss|vocab_parallel_cross_entropy|fixed_cross_entropy|ForCausalLMLoss)$",
            ),
            _any("code", r"cross_entropy\(|nll_loss\(|CrossEntropyLoss\("),
        ),
    ),
    (
        "logits",
        (
            _any(
                "code",
                r"\blm_head\(|\blm_logits\b|shift_logits|logits\.(?:float|to|exp|log_softmax)|vocab_parallel_logits|log_softmax\(|output_layer\(|embed_out\(|decoder\.weight|seg_logit",
            ),
            _any(
                "function",
                r"^(?:_get_per_token_logps\w*|_compute_distributed_log_softmax|selective_log_softmax|log_softmax|get_logits|_?convert_to_fp32)$",
            ),
        ),
    ),
    (
        "variable-shape",
        (
            _any(
                "function",
                r"^(?:bbox_overlaps|pairwise_iou|box_iou|max_iou_assign\w*|(?:get|build)_targets|get_assignments|assign|make_pad_mask|roi_align|nms|(?:simota|dynamic_k)_matching)$",
            ),
            _any("path", r"assigners?/|TaskAligned|iou_calculators"),
        ),
    ),
    ("optimizer-temporaries", (_any("code", r"_foreach_\w+"), _any("function", r"^_multi_tensor_\w+$"))),
    (
        "optimizer-state",
        (
            _any("code", r"exp_avg|momentum_buffer|state\[.*\]\s*=\s*torch\.(?:zeros|empty)|torch\.zeros_like\(p\b"),
            _any("function", r"^(?:_init_group|init_state\w*|_init_state|initialize_optimizer_states)$"),
        ),
    ),
    (
        "eval-collect",
        (
            _any(
                "function",
                r"^(?:nested_concat|torch_pad_and_concatenate|gather_for_metrics|pad_across_processes|collect_results\w*)$",
            ),
            _any(
                "code",
                r"(?:preds|predictions|outputs|logits|labels)(?:_host|_all)?\s*(?:\+=|=\s*torch\.cat|\.append\()|all_(?:preds|outputs|logits)",
            ),
        ),
    ),
    ("state-dict", (_any("function", r"state_dict|_save_to_state_dict|undo_layout|_alloc_storage|consolidate"),)),
    (
        "gather-parameters",
        (
            _any("code", r"GatheredParameters\(|summon_full_params\("),
            _any("function", r"^(?:summon_full_params|_alloc_padded_unsharded_flat_param)$"),
            _any("path", r"partition_parameters\.py"),
        ),
    ),
    (
        "load-checkpoint",
        (
            _any("path", r"torch/serialization\.py"),
            _any("code", r"torch\.load\("),
            _any("function", r"^(?:load_state_dict|restore\w*|resume\w*|_load_optimizer_and_scheduler)$"),
        ),
    ),
    (
        "load-weights",
        (
            _any("function", r"^(?:convert|_apply|set_module_tensor_to_device|_load_state_dict_into\w*)$"),
            _any("code", r"\.from_pretrained\(|\bmodel\w*\.(?:to|cuda|half)\("),
        ),
    ),
    (
        "kv-cache",
        (
            _any("code", r"past_key|torch\.cat\(\[\s*(?:past|cache)|cache\.update\("),
            _any("function", r"^(?:_?allocate_kv_cache|initialize_cache|reorder_cache)$"),
            _any("path", r"cache_utils\.py|cache_engine\.py"),
        ),
    ),
    ("collective", (_any("path", r"distributed_c10d"), _any("code", r"\bdist\.\w+\(|all_(?:reduce|gather)|barrier\("))),
    ("pin-memory", (_any("function", r"^pin_memory$"), _any("code", r"\.pin_memory\("))),
    ("collate", (_any("path", r"_utils/collate\.py"), _any("function", r"collate"))),
    ("input-tensor", (_any("code", r"=\s*torch\.(?:randn?|zeros|ones|empty|full|randint)\("),)),
)
_PLUMBING = re.compile(
    r"torch/nn/modules/(?:module|container)\.py|torch/_dynamo|torch/_inductor|/torchinductor_|torch/utils/_contextlib|torch/amp|accelerate/utils/operations|torch/nn/functional\.py|torch/_tensor\.py|torch/tensor\.py"
)
_MODEL_CALL = re.compile(r"\b(?:self\.)?(?:model|net|network)\w*\(")
_TELLING = (
    "cross_entropy",
    "nll_loss",
    "log_softmax",
    "multi_head_attention_forward",
    "_convert_to_fp32",
    "convert_to_fp32",
)
"""Functions of the plumbing that do name an operation; accelerate converts a model's outputs, its logits, to fp32."""
_LAUNCHER = re.compile(r"torch/distributed/(?:launch|launcher|run|elastic)\b|/bin/(?:torchrun|accelerate|deepspeed)$")
_SHARPER = {("forward", "loss"): "loss", ("load", "optimizer-state"): "optimizer"}
"""(phase, operation): the phase that the operation itself belongs to."""
_FORWARD_OPERATIONS = frozenset(
    {"attention-fused", "attention-scores", "attention-mask", "logits", "loss", "variable-shape"}
)
_INNERMOST = 5


def place(frames: Sequence[Frame]) -> Place:
    """Phase and operation that a traceback shows; ``unknown`` and None where no rule knows its frames."""
    phase, phase_frame = "unknown", None
    frames = [frame for frame in frames if not _LAUNCHER.search(_path(frame))]
    whole = frames
    for name, depth, rules in _PHASES:
        frames = whole
        if name == "loss":  # a loss function that calls the model is in the model's forward
            called = max(
                (i for i, f in enumerate(frames) if _MODEL_CALL.search(f.code) and not _PLUMBING.search(_path(f))),
                default=-1,
            )
            frames = frames[called + 1 :] or frames[-1:]
        within = (
            frames
            if depth is None
            else [f for f in frames if not _PLUMBING.search(_path(f)) or f is frames[-1]][-depth:]
        )
        if hit := next((frame for frame in within if _fulfils(frame, rules)), None):
            phase, phase_frame = name, hit
            break
    operation, operation_frame = _operation(whole)
    if operation is None and phase == "backward":
        recompute = any("checkpoint.py" in frame.path for frame in whole)
        operation, operation_frame = ("recompute" if recompute else "backward"), phase_frame
    if phase == "unknown" and operation in _FORWARD_OPERATIONS:
        phase, phase_frame = "forward", operation_frame
    if (phase, operation) in _SHARPER:
        phase, phase_frame = _SHARPER[phase, str(operation)], operation_frame
    return Place(phase, operation, phase_frame, operation_frame)


def _operation(frames: Sequence[Frame]) -> tuple[str | None, Frame | None]:
    telling = [frame for frame in reversed(frames) if not _PLUMBING.search(_path(frame)) or frame.function in _TELLING]
    for frame in telling[:_INNERMOST]:
        for name, rules in _OPERATIONS:
            if _fulfils(frame, rules):
                return name, frame
    return None, None


def _fulfils(frame: Frame, rules: tuple[tuple[str, re.Pattern[str]], ...]) -> bool:
    fields = {"path": _path(frame), "function": frame.function.rpartition(".")[2], "code": frame.code}
    return any(fields[field] and pattern.search(fields[field]) for field, pattern in rules)


def _path(frame: Frame) -> str:
    return frame.path.replace("\\", "/")
