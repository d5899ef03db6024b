"""Training loops with a retained graph that were met in public, restated. Each says where; LEAK marks the line."""

from __future__ import annotations

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
