"""Training loops with a retained graph that were met in public, restated. Each says where; LEAK marks the line."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn


def lstm_state_never_detached():
    """The state of an LSTM goes from one batch to the next with its history.

    https://github.com/pytorch/pytorch/issues/2198
    """
    rnn = nn.LSTM(32, 64, batch_first=True)
    head = nn.Linear(64, 32)
    model = nn.ModuleList([rnn, head])

    def train(model, loader):
        lstm, readout = model
        state = None
        for chunk in loader:
            features, state = lstm(chunk, state)  # LEAK
            loss = nn.functional.mse_loss(readout(features), chunk)
            loss.backward(retain_graph=True)

    return model, [torch.randn(8, 12, 32) for _ in range(4)], train


def likelihood_summed_over_sentences():
    """A sum of losses over the sentences holds the graph of each until the only backward at the end.

    https://github.com/pytorch/pytorch/issues/1840
    """
    model = nn.Sequential(nn.Embedding(100, 32), nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 5))

    def fit(model, sentences_loader):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        sum_log_likelihood = torch.zeros(())
        count = 0
        for words, tags in sentences_loader:
            scores = model(words)
            neg_log_likelihood = nn.functional.cross_entropy(scores.flatten(0, 1), tags.flatten())
            sum_log_likelihood += neg_log_likelihood  # LEAK
            count += 1
        (sum_log_likelihood / count).backward()
        optimizer.step()
        optimizer.zero_grad()

    batches = [(torch.randint(100, (8, 16)), torch.randint(5, (8, 16))) for _ in range(4)]
    return model, batches, fit


class Clone(torch.autograd.Function):
    """Keeps its own output on its context.

    https://github.com/pytorch/pytorch/issues/25340
    """

    @staticmethod
    def forward(context, x):
        y = x.clone()
        context.y = y  # LEAK
        return y

    @staticmethod
    def backward(context, gradient):
        return gradient


def output_on_its_own_context():
    """https://github.com/pytorch/pytorch/issues/25340"""
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 8))

    def step(model, x):
        return Clone.apply(model(Clone.apply(x.requires_grad_()))).square().mean()

    return model, torch.randn(64, 32), step


class Forecaster(nn.Module):
    """Collects the log of each step in a list for the end of the epoch.

    https://github.com/sktime/pytorch-forecasting/pull/1924
    """

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(24, 128), nn.GELU(), nn.Linear(128, 6))
        self.training_step_outputs = []

    def create_log(self, x, y, prediction):
        return {"loss": nn.functional.l1_loss(prediction, y), "prediction": prediction, "n_samples": len(x)}

    def training_step(self, batch):
        x, y = batch
        log = self.create_log(x, y, self.body(x))
        self.training_step_outputs.append(log)  # LEAK
        return log["loss"]


def step_outputs_kept_for_the_epoch():
    """https://github.com/sktime/pytorch-forecasting/pull/1924"""
    model = Forecaster()

    def step(model, batch):
        loss = model.training_step(batch)
        (loss * 1.0).backward()

    return model, (torch.randn(64, 24), torch.randn(64, 6)), step


class EagerAttention(nn.Module):
    """Attention that gives its weights out, as output_attentions does."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x):
        b, s, w = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(w, dim=-1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(w // self.heads)
        weights = scores.softmax(-1)  # SPIKE
        return self.out((weights @ v).transpose(1, 2).reshape(b, s, w)), weights


def attentions_kept_in_evaluation():
    """Evaluation gathers every batch's attention weights on the device before it computes anything.

    https://github.com/huggingface/transformers/issues/25487
    """
    model = EagerAttention()

    def evaluation_loop(model, dataloader):
        model.eval()
        all_attentions = []
        with torch.no_grad():
            for x in dataloader:
                _, attentions = model(x)
                all_attentions.append(attentions)  # LEAK
        return torch.cat(all_attentions).mean()

    return model, [torch.randn(2, 96, 32) for _ in range(4)], evaluation_loop


def gradients_with_a_graph():
    """The gradient penalty's backward makes gradients that have a graph, and nothing clears them.

    https://github.com/pytorch/pytorch/issues/1346
    """
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))

    def step(model, x):
        model(x).square().mean().backward(create_graph=True)  # LEAK
        penalty = sum(p.grad.square().sum() for p in model.parameters())
        return penalty.item()

    return model, torch.randn(64, 32), step


def long_batch_with_eager_attention():
    """A training step whose memory is the attention scores, as large as the square of the length.

    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
    """
    model = EagerAttention()

    def step(model, x):
        y, _ = model(x)
        return y.square().mean()

    return model, torch.randn(2, 256, 32), step


class NodeMemory(nn.Module):
    """A temporal graph network whose memory of nodes is written with its graph
    (https://github.com/memgraph/mage/pull/121: a method of its own detaches it, in a dictionary by node).
    """

    def __init__(self, nodes: int = 32, dim: int = 32) -> None:
        super().__init__()
        self.updater, self.score = nn.GRUCell(dim, dim), nn.Linear(2 * dim, 1)
        self.store = {node: torch.zeros(dim) for node in range(nodes)}

    def forward(self, source: torch.Tensor, target: torch.Tensor, events: torch.Tensor) -> torch.Tensor:
        was, other = (torch.stack([self.store[int(i)] for i in ids]) for ids in (source, target))
        for i, row in zip(source.tolist(), self.updater(events, was), strict=True):
            self.store[i] = row  # LEAK
        return self.score(torch.cat([was, other], 1)).sigmoid().mean()


def graph_memory_by_node():
    """With retain_graph=True, as the error's own hint has it."""
    events = torch.randint(0, 32, (16,)), torch.randint(0, 32, (16,)), torch.randn(16, 32)

    def step(model, events):
        loss = model(*events)
        loss.backward(retain_graph=True)

    return NodeMemory(), events, step


def every_state_of_the_model():
    """https://github.com/choderalab/pinot/issues/23: the state of each iterate is copied and kept."""
    model = nn.Linear(16, 64)
    states = {}

    def train(model, batches):
        for at, x in enumerate(batches):
            model(x).square().mean().backward()
            states[at] = copy.deepcopy(model.state_dict())  # LEAK

    return model, [torch.randn(8, 16) for _ in range(6)], train


def inner_losses_adapted_once():
    """https://github.com/learnables/learn2learn/issues/394: the losses of the inner loop are summed and adapted to once."""
    learner = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 4))

    def inner_loop(learner, support):
        loss = 0.0
        for x in support:
            loss = loss + learner(x).square().mean()  # LEAK
        torch.autograd.grad(loss, list(learner.parameters()))

    return learner, [torch.randn(32, 16) for _ in range(6)], inner_loop


def extra_losses_of_a_step():
    """https://github.com/pdearena/pdearena/pull/4: losses that only a log wants leave the step in a dictionary."""
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64))

    def fit(model, loader):
        outputs = []
        for x in loader:
            predicted = model(x)
            out = {"loss": predicted.square().mean(), "scalar": predicted.exp().mean()}
            out["loss"].backward()
            outputs.append(out)  # LEAK

    return model, [torch.randn(32, 16) for _ in range(6)], fit


def batch_called_data():
    """Gradients caught in a hook (https://github.com/pytorch/pytorch/issues/4661), in a step that calls its batch data."""
    model, head = nn.Sequential(nn.Linear(16, 64), nn.Tanh()), nn.Linear(64, 2)
    caught = []
    model[0].register_full_backward_hook(lambda module, inwards, outwards: remember(outwards[0]))

    def remember(gradient):
        caught.append(gradient)  # LEAK

    def step(model, data):
        x, y = data
        nn.functional.cross_entropy(head(model(x)), y).backward(create_graph=True)
        for one in (*model.parameters(), *head.parameters()):
            one.grad = None

    return model, (torch.randn(32, 16), torch.randint(0, 2, (32,))), step
