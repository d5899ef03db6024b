"""Settings in the spellings of logs and files, under their canonical names; and a worker's error file."""

import json

import pytest

from diag_kit.evidence import settings_file
from diag_kit.evidence.facts import Event, Setting, Traceback
from diag_kit.evidence.parsers import settings_lines
from diag_kit.evidence.run import load_run
from diag_kit.evidence.text import Window, lines_of


def of_log(text):
    return {
        f.name: f.value
        for f in settings_lines.parse(Window("run.log", lines_of(text.encode())))
        if isinstance(f, Setting)
    }


def of_file(name, text):
    return {f.name: f.value for f in settings_file.parse(name, text)[0] if isinstance(f, Setting)}


MEGATRON = """  accumulate_allreduce_grads_in_fp32 .............. True
  ffn_hidden_size ................................. 11008
  global_batch_size ............................... 256
  hidden_size ..................................... 4096
  micro_batch_size ................................ 2
  num_attention_heads ............................. 32
  num_layers ...................................... 32
  num_query_groups ................................ 8
  padded_vocab_size ............................... 32000
  pipeline_model_parallel_size .................... 2
  recompute_granularity ........................... selective
  seq_length ...................................... 4096
  swiglu .......................................... True
  tensor_model_parallel_size ...................... 4
  use_flash_attn .................................. True
  world_size ...................................... 64
"""


def test_a_dump_of_megatron_gives_settings_and_shape():
    """Dotted arguments become settings; the numbers of layers, heads and widths become the model."""
    found = of_log(MEGATRON)
    model = found.pop("model")
    assert {name: model[name] for name in ("n_layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "gated_ffn")} == {
        "n_layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 11008, "vocab": 32000, "gated_ffn": True
    }  # fmt: skip
    assert found == {
        "gradient_dtype": "fp32", "effective_batch": 256, "micro_batch": 2, "pipeline_parallel": 2, "tensor_parallel": 4,
        "checkpointing": "selective", "seq_len": 4096, "attention": "flash", "world_size": 64, "vocab": 32000,
    }  # fmt: skip


def test_numbers_of_two_models_make_no_shape():
    """Where a vision tower's numbers stand beside a language model's, neither is taken for the other."""
    text = '"hidden_size": 4096,\n"num_attention_heads": 32,\n"num_hidden_layers": 32,\n"vision_config": {\n"hidden_size": 1024,\n},\n"vocab_size": 32000\n'
    assert "model" not in of_log(text)
    assert of_log(text.replace("1024", "4096"))["model"]["hidden"] == 4096


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "INFO - Training/evaluation parameters TrainingArguments(adam_beta1=0.9, per_device_train_batch_size=2, gradient_accumulation_steps=4, "
            "bf16=True, optim=OptimizerNames.ADAMW_TORCH, fsdp=[], output_dir=/a)",
            {"micro_batch": 2, "grad_accum": 4, "precision": "amp-bf16", "optimizer": "adamw_torch"},
        ),
        (
            "Namespace(batch_size=16, seq_length=4096, world_size=8, fp16=True, resume='')",
            {"micro_batch": 16, "seq_len": 4096, "world_size": 8, "precision": "amp-fp16"},
        ),
        (
            "{'_name': None, 'common': {'_name': None, 'fp16': True}, 'optimization': {'update_freq': [4]}, 'dataset': {'batch_size': None}}",
            {"precision": "amp-fp16", "grad_accum": 4},
        ),
        (
            "using world size: 64, data-parallel size: 8, tensor-model-parallel size: 4, pipeline-model-parallel size: 2 ",
            {"world_size": 64, "tensor_parallel": 4, "pipeline_parallel": 2},
        ),
        (
            "trainable params: 4,194,304 || all params: 6,742,609,920 || trainable%: 0.0622",
            {"n_params_trainable": 4194304, "n_params": 6742609920},
        ),
        ("Using bfloat16 Automatic Mixed Precision (AMP)", {"precision": "amp-bf16"}),
        (
            "torchrun --nproc_per_node=8 train.py --per_device_train_batch_size 4 --model_max_length 4096 --fsdp 'full_shard auto_wrap' --zero_stage 3",
            {"world_size": 8, "micro_batch": 4, "seq_len": 4096, "strategy": "zero3"},
        ),
        ("{'loss': 2.3, 'grad_norm': 1.1, 'learning_rate': 5e-05, 'epoch': 0.1}", {}),
        ("a batch (size=4) of arguments", {}),
    ],
)
def test_settings_of_a_line(text, expected):
    """Arguments in one line, a framework's banner, and a command line; a line of progress states no setting."""
    assert of_log(text) == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "ds.json",
            '{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 3, '
            '"offload_optimizer": {"device": "cpu"}}, "data_types": {"grad_accum_dtype": "fp32"}}',
            {"grad_accum": 4, "strategy": "zero3", "offload": "cpu", "gradient_dtype": "fp32"},
        ),
        (
            "fsdp.yaml",
            "distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: true\n  fsdp_activation_checkpointing: true\nmixed_precision: bf16\n"
            "num_processes: 16\n",
            {"strategy": "fsdp", "offload": "cpu", "checkpointing": "full", "precision": "amp-bf16", "world_size": 16},
        ),
        (
            "accelerate.yaml",
            "deepspeed_config:\n  gradient_accumulation_steps: 2\n  offload_optimizer_device: cpu\n  zero_stage: 2\ndistributed_type: DEEPSPEED\n",
            {"grad_accum": 2, "offload": "cpu", "strategy": "zero2"},
        ),
        (
            "lightning.yaml",
            "trainer:\n  strategy: deepspeed_stage_3_offload\n  accumulate_grad_batches: 4\n  precision: bf16-mixed\n",
            {"strategy": "zero3", "offload": "cpu", "grad_accum": 4, "precision": "amp-bf16"},
        ),
        (
            "axolotl.yml",
            "sequence_len: 8192\nmicro_batch_size: 2\nflash_attention: true\nsample_packing: true\nbf16: auto\n",
            {"seq_len": 8192, "micro_batch": 2, "attention": "flash", "packing": True},
        ),
    ],
)
def test_settings_of_a_file(name, text, expected):
    """DeepSpeed's, accelerate's, Lightning's and axolotl's own names; what is left to "auto" is not known."""
    assert of_file(name, text) == expected


def test_an_error_file_of_a_worker_is_read_as_a_log():
    """torchelastic's error file gives the failure with its figures, time and rank, and the traceback that ends in it."""
    stack = (
        'Traceback (most recent call last):\n  File "/a/train.py", line 9, in main\n    loss.backward()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB of which 1.25 GiB is free.\n"
    )
    data = {
        "message": {
            "message": "OutOfMemoryError: CUDA out of memory.",
            "extraInfo": {"py_callstack": stack, "timestamp": "1696843291"},
        }
    }
    facts, _ = settings_file.parse("logs/attempt_0/3/error.json", json.dumps(data))
    [event] = [f for f in facts if isinstance(f, Event)]
    [traceback] = [f for f in facts if isinstance(f, Traceback)]
    assert (event.kind, event.rank, event.device, event.time) == ("torch.oom", 3, 3, 1696843291.0)
    assert event.figures["tried_to_allocate_bytes"] == 2 << 30
    assert traceback.source.line <= event.source.line <= traceback.end_line
    assert not [
        f for f in settings_file.parse("a.json", '{"message": {"message": "hello"}}')[0] if isinstance(f, Event)
    ]


@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "1e400", "1.2.3", "9" * 400])
def test_numbers_beyond_numbers_are_no_settings(number):
    """Infinity, what is no number and what no float holds give no setting, and cost no reader its line."""
    text = f"batch_size: {number}\nlearning_rate: {number}\nnumber of parameters: {number}M\n  Gradient Accumulation steps = 4\n"
    run = load_run(text=text)
    assert {name: setting.value for name, setting in run.settings.items()} == {"grad_accum": 4}
    assert not run.coverage()["notes"]
