"""Models as settings name them, built without weights or network, on fake tensors and on real ones."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402

from diag_kit.errors import SettingsError  # noqa: E402
from diag_kit.memory.architecture import UNCOVERED  # noqa: E402
from diag_kit.memory.settings import ExactModel, Settings  # noqa: E402
from diag_kit.memory.trace import configs  # noqa: E402
from diag_kit.memory.trace.ledger import Ledger  # noqa: E402
from diag_kit.memory.trace.models import Job, build  # noqa: E402
from diag_kit.memory.trace.plain import plain_transformers  # noqa: E402

SMALL = {"n_layers": 2, "hidden": 64, "heads": 4, "vocab": 500}
PLAIN = SMALL | {"gated_ffn": False}
NUMBERS: dict[str, dict[str, Any]] = {
    "llama": SMALL | {"kv_heads": 2, "ffn": 128},
    "qwen2, biases on query, key and value": SMALL | {"qkv_bias": True},
    "wide heads": SMALL | {"head_dim": 32},
    "gated with layer norm": SMALL | {"norm": "layer"},
    "gpt2": PLAIN | {"positions": 128, "tied_embeddings": True, "activation": "gelu_new"},
    "gpt2, untied": PLAIN | {"positions": 128},
    "opt": PLAIN | {"positions": 128, "fused_qkv": False},
    "gpt-neox": PLAIN,
    "plain with grouped heads": PLAIN | {"kv_heads": 2},
    "plain with rms norm": PLAIN | {"norm": "rms"},
}


def job(model: dict[str, Any], layers: int | None = None, **more: Any) -> Job:
    return build(Settings.from_json({"model": model, "micro_batch": 2, "seq_len": 48, **more}), layers)


def step(one: Job, micro_batch: int = 2, seq_len: int = 48) -> Any:
    loss, outputs = one.loss(one.model, one.batch(micro_batch, seq_len))
    loss.backward()
    optimizer = one.optimizer(one.model.parameters())
    assert optimizer is not None
    optimizer.step()
    return loss, outputs


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_become_a_model_with_as_many_parameters(name: str) -> None:
    """A model known by its numbers is built with exactly the parameters that the closed forms count, and it trains."""
    one = job(NUMBERS[name])
    built = sum(p.numel() for p in one.model.parameters())
    assert built == Settings.from_json({"model": NUMBERS[name]}).model.params
    assert torch.isfinite(step(one)[0])


def test_fake_models_hold_no_memory() -> None:
    """Under fake tensors the same code builds a model of 70 thousand million parameters, and nothing in it is real."""
    big = {"n_layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 128256}
    with FakeTensorMode(allow_non_fake_inputs=True):
        one = job(big, layers=2, precision="bf16")
        batch = one.batch(3, 40)
    held = [*one.model.parameters(), *one.model.buffers(), *batch.values()]
    assert all(isinstance(t, FakeTensor) for t in held)
    assert (one.layers, one.full_layers, one.period) == (2, 80, 1)
    assert next(one.model.parameters()).dtype is torch.bfloat16
    assert batch["input_ids"].shape == (3, 40) and batch["labels"].dtype is torch.int64


LLAMA = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 128, "vocab_size": 500}  # fmt: skip
ENCODER = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
           "vocab_size": 500, "max_position_embeddings": 50}  # fmt: skip


def from_config(model_type: str, layers: int | None = None, more: dict[str, Any] | None = None, **config: Any) -> Job:
    return job({"hf_config": {"model_type": model_type, **config}}, layers, **(more or {}))


def events(model: Any, one: Job) -> list[tuple[int, str]]:
    """What a second step allocates (bytes, operator) and frees (-bytes, nothing), in order."""
    optimizer = one.optimizer(model.parameters())
    assert optimizer is not None

    def run() -> None:
        loss, outputs = one.loss(model, one.batch(2, 48))
        loss.backward()
        del loss, outputs
        optimizer.step()
        optimizer.zero_grad()

    with plain_transformers():
        run()
        with Ledger(model) as ledger:
            run()
    made = ledger.recording.allocations
    return [
        (made[e - 1].bytes, made[e - 1].op) if e > 0 else (-made[-e - 1].bytes, "") for e in ledger.recording.events
    ]


def recorded(one: Job, micro_batch: int = 2, seq_len: int = 48) -> Any:
    """A ledger's recording of one forward and backward, under whatever mode the job was built in."""
    with plain_transformers(), Ledger(one.model) as ledger:
        loss, outputs = one.loss(one.model, one.batch(micro_batch, seq_len))
        ledger.mark("backward", 1)
        loss.backward()
        del outputs
    return ledger.recording


@pytest.mark.parametrize(
    ("config", "cls", "labels", "vocab"),
    [
        ({"model_type": "llama", **LLAMA}, "LlamaForCausalLM", (2, 20), 500),
        ({"model_type": "bert", **ENCODER}, "BertForSequenceClassification", (2,), None),
        ({"model_type": "bert", **ENCODER, "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM", (2, 20), 500),
        (
            {"model_type": "roberta", **ENCODER, "architectures": ["RobertaForTokenClassification"]},
            "RobertaForTokenClassification", (2, 20), None,
        ),
        (
            {"model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
             "vocab_size": 500},
            "T5ForConditionalGeneration", (2, 20), 500,
        ),
        (
            {"model_type": "vit", "image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2,
             "num_attention_heads": 2, "intermediate_size": 64},
            "ViTForImageClassification", (2,), None,
        ),
        (
            {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
            "ResNetForImageClassification", (2,), None,
        ),
        (
            {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "image_token_index": 499,
             "text_config": {"model_type": "llama", **LLAMA},
             "vision_config": {"model_type": "clip_vision_model", "hidden_size": 32, "num_hidden_layers": 2,
                               "num_attention_heads": 2, "intermediate_size": 64, "image_size": 16, "patch_size": 8}},
            "LlavaForConditionalGeneration", (2, 20), 500,
        ),
    ],
)  # fmt: skip
def test_a_configuration_becomes_the_class_that_trains_it(
    config: dict[str, Any], cls: str, labels: tuple[int, ...], vocab: int | None
) -> None:
    """The class that ``architectures`` names, or the usual one for the type, with a batch that it accepts."""
    one = job({"hf_config": config})
    assert type(one.model).__name__ == cls
    assert one.vocab == vocab
    batch = one.batch(2, 20)
    assert batch["labels"].shape == labels
    assert torch.isfinite(one.loss(one.model, batch)[0])
    assert one.model.training


@pytest.mark.parametrize(
    ("model_type", "config", "period"),
    [
        ("llama", LLAMA, 1),
        ("gemma2", LLAMA | {"head_dim": 16}, 2),
        ("deepseek_v3", LLAMA | {"num_key_value_heads": 4, "n_routed_experts": 8, "moe_intermediate_size": 32,
                                 "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
                                 "kv_lora_rank": 16, "q_lora_rank": 16}, None),
        ("t5", {"d_model": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 500}, None),
    ],
)  # fmt: skip
def test_a_stack_is_cut_where_it_repeats_and_only_there(
    model_type: str, config: dict[str, Any], period: int | None
) -> None:
    """A depth other than the real one is built of whole periods; a stack that doesn't repeat is built whole."""
    plan = configs.blueprint(Settings.from_json({"model": {"hf_config": {"model_type": model_type, **config}}}))
    full = configs.depth(plan.config)
    assert (configs.period(configs.on_meta(plan), full) if full else None) == period
    if period is None:
        return
    for layers in (2 * period, 3 * period, 6):
        cut = configs.at_depth(plan.config, layers, period)
        assert cut.num_hidden_layers == layers
        if types := getattr(cut, "layer_types", None):
            assert types == [plan.config.layer_types[i % period] for i in range(layers)]


def test_depth_changes_the_model_alone() -> None:
    """Fewer layers leave embedding, head and every layer as they are."""
    shallow, deep = from_config("llama", 2, **LLAMA), from_config("llama", **LLAMA)
    assert (shallow.layers, shallow.full_layers, deep.layers) == (2, 4, 4)
    count = [sum(p.numel() for p in one.model.parameters()) for one in (shallow, deep)]
    per_layer = sum(p.numel() for p in deep.model.model.layers[0].parameters())
    assert count[1] - count[0] == 2 * per_layer


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "llama2000"}, ("model_type 'llama2000'", "upgrade transformers", "model.factory")),
        ({"model_type": "mine", "auto_map": {"AutoModel": "m.M"}}, ("auto_map", "model.factory")),
        ({"model_type": "llama", "architectures": ["FooForBar"]}, ("FooForBar", "model.factory")),
        ({"model_type": "llama", "hidden_size": "wide"}, ("transformers refuses", "hidden_size")),
        ({"model_type": "llama", "hidden_size": 100, "num_attention_heads": 7}, ("multiple", "mend")),
        ({"model_type": "llama", "vocab_size": 8, "pad_token_id": 9}, ("LlamaForCausalLM can't be built", "mend")),
        ({}, ("model_type", "model.factory")),
    ],
)
def test_a_configuration_that_is_refused_is_told_in_one_line(config: dict[str, Any], said: tuple[str, ...]) -> None:
    """What transformers does not know or refuses is one line with the file, what is wrong and what to do."""
    settings = Settings(model=UNCOVERED, exact=ExactModel(json.dumps(config), where="/home/me/config.json"))
    with pytest.raises(SettingsError) as caught:
        build(settings)
    for part in ("/home/me/config.json", *said):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sequences_longer_than_the_positions_are_refused() -> None:
    """A length that a real run would fail on is refused, with the most that the model takes."""
    one = from_config("bert", **ENCODER)
    assert one.longest == 50
    with pytest.raises(SettingsError, match="50 learned positions"):
        one.batch(2, 51)


def test_a_fake_step_makes_no_mask_that_a_real_step_leaves_out() -> None:
    """Without padding a real run hands no mask to fused attention; under fake tensors neither is one built."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        one = from_config("llama", **LLAMA)
        fake = recorded(one)
    assert not [a for a in fake.allocations if a.shape[-2:] == (48, 48)]
    real = recorded(from_config("llama", **LLAMA))
    assert [a.bytes for a in fake.allocations] == [a.bytes for a in real.allocations]


def test_logits_are_held_or_let_go() -> None:
    """``keep_logits`` decides whether the loop still refers to the model's outputs after the loss."""
    kept = job(NUMBERS["llama"])
    assert kept.loss(kept.model, kept.batch(1, 8))[1].logits.shape == (1, 8, 500)
    gone = job(NUMBERS["llama"], keep_logits=False)
    assert gone.loss(gone.model, gone.batch(1, 8))[1] is None


def test_dropout_is_the_settings_or_the_configurations() -> None:
    """settings.dropout replaces every dropout; while it is 0 a configuration's own holds, and that is said."""
    gpt2 = {"n_embd": 64, "n_layer": 1, "n_head": 4, "vocab_size": 500}
    own = from_config("gpt2", **gpt2)
    assert own.model.config.attn_pdrop == 0.1
    assert any("attn_pdrop 0.1" in note for note in own.notes)
    assert from_config("gpt2", more={"dropout": 0.25}, **gpt2).model.config.resid_pdrop == 0.25
    assert job(NUMBERS["gpt2"]).model.config.resid_pdrop == 0.0


@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp-bf16"])
def test_adapters_allocate_as_peft_does(precision: str) -> None:
    """A step with LoRA allocates and frees what it does under peft: sizes, operators and order."""
    peft = pytest.importorskip("peft")
    targets = ["q_proj", "up_proj", "down_proj"]
    own = job(NUMBERS["llama"], precision=precision, lora={"rank": 4, "targets": targets})
    base = job(NUMBERS["llama"], precision=precision)
    theirs = peft.get_peft_model(base.model, peft.LoraConfig(r=4, target_modules=targets)).train()
    assert events(own.model, own) == events(theirs, base)


def test_adapters_find_the_layers_of_models_known_by_numbers() -> None:
    """Settings name layers as llama does; models that call them otherwise get adapters on the same ones."""
    for name, adapted in (("llama", 6), ("gpt2", 6), ("gpt-neox", 6), ("opt", 6), ("plain with grouped heads", 6)):
        one = job(NUMBERS[name], lora={"rank": 4, "targets": ["q_proj", "o_proj", "down_proj"]})
        assert sum("lora_A" in path for path, _ in one.model.named_parameters()) == adapted, name
    with pytest.raises(SettingsError, match=r"no linear layer w_q; it has .*q_proj"):
        from_config("llama", more={"lora": {"targets": ["w_q"]}}, **LLAMA)


def test_a_four_bit_base_is_packed_and_saves_no_input() -> None:
    """Linear layers take 4.5 bits a weight, all else and the residual stream fp32; only adapters are trained."""
    one = job(NUMBERS["llama"], lora={"rank": 4, "targets": ["q_proj"]}, base_quantization="nf4")
    layer = one.model.model.layers[0].mlp.down_proj
    held = sum(p.numel() * p.element_size() for p in layer.parameters())
    assert held == 64 * 128 // 2 + 64 * 128 // 64 * 4 + 16 * 4
    assert one.model.lm_head.weight.dtype is torch.float32
    trained = [name for name, p in one.model.named_parameters() if p.requires_grad]
    assert trained and all("lora" in name for name in trained)
    x = torch.ones(2, 128, requires_grad=True)
    saved: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        layer(x).sum().backward()
    assert saved == []
    assert x.grad is not None
    step(one)


@pytest.mark.parametrize(("precision", "device"), [("fp32", "cpu"), ("bf16", "cuda"), ("amp-bf16", "cpu")])
def test_a_fused_loss_is_the_same_loss_without_the_logits(precision: str, device: str) -> None:
    """Chunked head and cross-entropy give the plain loss and gradients, and nothing as large as the logits."""
    plain, fused = (
        job(NUMBERS["llama"], precision=precision, device=device, fused_loss=fuse) for fuse in (False, True)
    )
    fused.model.load_state_dict(plain.model.state_dict())
    batch = plain.batch(2, 48)
    losses = []
    for one in (plain, fused):
        loss = one.loss(one.model, batch)[0]
        loss.backward()
        losses.append(loss.item())
    tolerance = 1e-5 if precision == "fp32" else 3e-2
    assert losses[0] == pytest.approx(losses[1], rel=tolerance)
    for (name, a), b in zip(plain.model.named_parameters(), fused.model.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=10 * tolerance, atol=tolerance / 10), name
    shapes = [a.shape for a in recorded(fused).allocations if a.shape[-1:] == (500,)]
    assert max(math.prod(shape) for shape in shapes if 64 not in shape) <= 2 * 48 * 500 / 4


def test_checkpointing_keeps_less_and_selective_keeps_the_products() -> None:
    """At the start of backward full checkpointing keeps least; selective keeps every second product as well."""
    kept = {}
    for how in ("none", "full", "selective"):
        recording = recorded(job(NUMBERS["llama"], checkpointing=how))
        end = next(m.event for m in recording.marks if m.phase == "backward")
        alive = {abs(e) - 1 for e in recording.events[:end] if e > 0} - {
            -e - 1 for e in recording.events[:end] if e < 0
        }
        kept[how] = sum(recording.allocations[i].bytes for i in alive)
        if how == "selective":
            products = [recording.allocations[i] for i in alive if recording.allocations[i].op in ("mm", "addmm")]
            assert len(products) == 2 * 4 + 1  # q, v, gate and down of each layer; the logits
    assert kept["full"] < kept["selective"] < kept["none"]


@pytest.mark.parametrize(
    ("settings", "states"),
    [
        ({"optimizer": "adamw"}, 8), ({"optimizer": "adamw-fused"}, 8), ({"optimizer": "sgd"}, 0),
        ({"optimizer": "adamw", "precision": "bf16"}, 4),
        ({"optimizer": "adamw", "precision": "bf16", "gradient_dtype": "fp32", "optimizer_state_dtype": "fp32"}, 8),
        ({"optimizer": "adamw-fused", "precision": "bf16", "optimizer_state_dtype": "fp32"}, 8),
        ({"optimizer": "adamw-loop", "optimizer_state_dtype": "bf16"}, 4),
        ({"optimizer": "adamw-8bit"}, 2 + 8 / 256),
    ],
)  # fmt: skip
def test_optimizers_hold_the_states_that_they_say(settings: dict[str, Any], states: float) -> None:
    """Bytes of optimizer state per element of a large parameter, and gradients in the dtype asked for."""
    one = job(NUMBERS["llama"], **settings)
    parameter = one.model.model.embed_tokens.weight
    optimizer = one.optimizer(one.model.parameters())
    assert optimizer is not None
    loss, _ = one.loss(one.model, one.batch(2, 48))
    loss.backward()
    wanted = torch.float32 if settings.get("gradient_dtype") == "fp32" else parameter.dtype
    assert parameter.grad.dtype is wanted
    before = parameter.detach().clone()
    optimizer.step()
    assert parameter.grad.dtype is wanted
    if settings["optimizer"] != "adamw-8bit" and "optimizer_state_dtype" not in settings:
        assert not torch.equal(before, parameter)
    shared = ("step", "qmap1", "qmap2")
    held = {k: t for k, t in optimizer.state[parameter].items() if isinstance(t, torch.Tensor) and k not in shared}
    own = sum(t.numel() * t.element_size() for t in held.values())
    assert own == pytest.approx(states * parameter.numel(), rel=0.01)


def test_adafactor_and_none() -> None:
    """Adafactor keeps a row and a column for each matrix; ``none`` is no optimizer."""
    one = job(NUMBERS["llama"], optimizer="adafactor")
    step(one)
    optimizer = one.optimizer(one.model.parameters())
    loss, _ = one.loss(one.model, one.batch(2, 48))
    loss.backward()
    optimizer.step()
    state = optimizer.state[one.model.model.embed_tokens.weight]
    assert sum(t.numel() for t in state.values() if isinstance(t, torch.Tensor) and t.dim()) == 500 + 64
    assert job(NUMBERS["llama"], optimizer="none").optimizer([]) is None
