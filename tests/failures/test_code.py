"""The code of every fix for PyTorch, the Trainer, accelerate and Lightning is run: on a CPU, with a small model."""

import ast
import importlib.util
import warnings

import pytest

from diag_kit.failures import load_entries

for needed in ("torch", "transformers", "accelerate"):
    pytest.importorskip(needed, reason="the code of fixes runs with torch, transformers and accelerate")

from . import stage  # noqa: E402

RUN = ("pytorch", "trainer", "accelerate", "lightning")
BLOCKS = [
    pytest.param(framework, code, id=f"{entry.id}/{fix.id}/{framework}")
    for entry in load_entries() for fix in entry.fixes for framework, code in fix.code.items() if framework in RUN
]  # fmt: skip


def imported(code):
    """Top names of the modules that a block imports."""
    nodes = list(ast.walk(ast.parse(code)))
    found = {alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return found | {str(node.module).partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A tiny model that loads by its path."""
    return stage.saved(tmp_path_factory.mktemp("model"))


@pytest.fixture
def perform(model_folder, tmp_path, monkeypatch):
    """Run a block on the stage; what it made."""

    def play(code, **more):
        needs = sorted(imported(code) & set(stage.ABSENT))
        if missing := [name for name in needs if importlib.util.find_spec(name) is None]:
            pytest.skip(f"parsed, not run: {', '.join(missing)} is not installed")
        if "lightning" in imported(code):
            pytest.importorskip("lightning", reason="parsed, not run: lightning is not installed")
        space = stage.names(code, model_folder, tmp_path) | more
        stage.forget_accelerate()
        before = dict(stage.os.environ)
        monkeypatch.chdir(tmp_path)
        try:
            with (
                warnings.catch_warnings(),
                stage.one_rank(code, space, tmp_path, monkeypatch),
                stage.on_cpu(monkeypatch),
            ):
                warnings.simplefilter("ignore")
                return stage.run(code, space, tmp_path)
        finally:
            stage.os.environ.clear()
            stage.os.environ.update(before)

    return play


@pytest.mark.parametrize(("framework", "code"), BLOCKS)
def test_the_code_of_a_fix_runs(framework, code, perform):
    """The block runs as it stands; what it defines trains, checks or samples here."""
    perform(code)


@pytest.mark.parametrize(
    "code",
    [
        "loss = model(**batch).loss\nloss.backwards()",
        "torch.cuda.memory_allocated(devise=0)",
        "args = TrainingArguments(output_dir='out', gradient_accumulation=4)",
        "args = TrainingArguments(output_dir='out', optim='adamw_of_the_future')",
        "class Mine(Trainer):\n    def compute_loss(self, model):\n        return model",
        "class Mine(TrainerCallback):\n    def on_step_end(self, args):\n        pass",
        "from accelerate import Accelerator\nAccelerator(gradient_accumulation=4)",
        "import lightning\ntrainer = lightning.Trainer(accumulate_gradients=4)",
        "import lightning\nclass Mine(lightning.LightningModule):\n    def training_step(self):\n        pass",
        "def test_it():\n    assert not_defined_anywhere",
        "class Twice(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return 2 * x\n"
        "    @staticmethod\n    def backward(ctx, grad):\n        return 3 * grad",
        "from torch.nn.attention import SDPBackend\nSDPBackend.FLASH",
    ],
    ids=range(12),
)
def test_wrong_code_fails(code, perform):
    """A wrong name, argument, signature, value or gradient of each framework does not pass on the stage."""
    with pytest.raises(Exception, match=r"."):
        perform(code)


# --- what the code of the two main entries promises ------------------------------------------------------------------


def code_of(entry, fix, framework="pytorch"):
    """A block by its names."""
    (found,) = (f.code[framework] for e in load_entries() if e.id == entry for f in e.fixes if f.id == fix)
    return found


def test_the_floor_test_fails_on_a_loop_that_keeps_graphs(perform):
    """The page's smoke test passes on an ordinary loop, and fails where each window keeps its losses' graphs."""
    smoke = code_of("gradient-accumulation-memory-spike", "smoke-test")
    leak = """kept = []
def train_one_window():
    for batch in micro_batches:
        loss = model(**batch).loss
        loss.backward(retain_graph=True)
        kept.append(loss)
"""
    perform(smoke.replace("2**20", "2**12"))
    with pytest.raises(AssertionError):
        perform(leak + smoke.replace("2**20", "2**12"))


def test_the_longest_batch_test_fails_where_it_does_not_fit(perform, monkeypatch):
    """The page's smoke test passes on a card with room, and fails on one that the longest batch fills."""
    smoke = code_of("activation-memory-spike", "smoke-test")
    perform(smoke)
    monkeypatch.setattr(stage, "CAPACITY", 2**16)
    with pytest.raises(AssertionError):
        perform(smoke)


def test_the_callback_raises_when_memory_grows(perform):
    """The Trainer callback stays silent on a healthy run, and raises where each step keeps something."""
    callback = code_of("gradient-accumulation-memory-spike", "smoke-test", "trainer")
    made = perform(callback)["MemoryFloor"](most=1000)
    state = stage.transformers.TrainerState()
    for allocated in [5000] * 20:
        torch_says(made, state, allocated)
    torch_says(made, state, 5900)
    with pytest.raises(RuntimeError, match="grew by 1200 bytes"):
        torch_says(made, state, 6200)


def torch_says(callback, state, allocated):
    """One step end with that much allocated."""
    real = stage.torch.cuda.memory_allocated
    try:
        stage.torch.cuda.memory_allocated = lambda *_: allocated
        callback.on_step_end(None, state, None)
    finally:
        stage.torch.cuda.memory_allocated = real


def test_a_token_budget_is_kept(perform):
    """No batch of the sampler exceeds the budget of padded tokens, each sample comes once, the largest batch first."""
    made = perform(code_of("activation-memory-spike", "tokens-per-batch"))
    lengths = [3, 12, 5, 8, 4, 9, 6, 7, 1, 1, 2]
    batches = list(made["TokenBudget"](lengths, 24))
    padded = [len(batch) * max(lengths[i] for i in batch) for batch in batches]
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert max(padded) <= 24
    assert lengths[batches[0][0]] == max(lengths)


def test_a_loss_in_chunks_is_the_loss(perform):
    """The chunked loss of the page equals the model's own."""
    made = perform(code_of("activation-memory-spike", "loss-in-chunks") + "whole = model(**batch).loss\nown = loss\n")
    assert made["own"].item() == pytest.approx(made["whole"].item(), rel=1e-5)


def test_checkpointing_keeps_less(perform):
    """Under the page's checkpointed blocks less is alive between forward and backward than under plain ones."""
    code = code_of("activation-memory-spike", "checkpointing")
    code = code.replace("Blocks()(hidden).sum().backward()", "blocks = Blocks()\nx = torch.randn(8, 32, 16)\n"
                        "before = torch.cuda.memory_allocated()\nout = blocks(x)\nkept = torch.cuda.memory_allocated() - before")  # fmt: skip
    plain = code.replace("checkpoint(layer, hidden, use_reentrant=False)", "layer(hidden)")
    assert plain != code
    assert perform(code)["kept"] * 3 < perform(plain)["kept"]


def test_the_ordinary_loop_peaks_below_the_deferred_one(perform):
    """The page's loop holds one micro-batch's activations at a time: its peak is far below one deferred backward's."""
    loop = code_of("gradient-accumulation-memory-spike", "backward-each-micro-batch")
    deferred = "total = sum(model(**batch).loss for batch in micro_batches)\ntotal.backward()\noptimizer.step()\n"
    start = "micro_batches = micro_batches * 4\ntorch.cuda.reset_peak_memory_stats()\n"
    end = "peak = torch.cuda.max_memory_allocated()\n"
    assert perform(start + loop + end)["peak"] * 2 < perform(start + deferred + end)["peak"]
