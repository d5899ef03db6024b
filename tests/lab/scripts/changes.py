"""Factories that take settings, and ones that can't be looked at."""

from __future__ import annotations

import os
import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def net(width=128):
    return nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 32))


def with_settings(settings):
    """Keeps outputs on purpose where ``keep`` says so."""
    kept = []

    def step(model, x):
        out = checkpoint(model, x, use_reentrant=False) if settings.get("checkpointing") else model(x)
        if settings.get("keep", True):
            kept.append(out)
        return model(x).mean()

    return net(), torch.randn(settings.get("batch", 16), 32), step


def with_keywords(width=128, batch=64, refuse=False):
    if refuse:
        raise RuntimeError("no such thing")

    def step(model, x):
        return model(x).mean()

    return net(width), torch.randn(batch, 32), step


def detach_would_break_learning():
    """The sum is what backward runs on later: ``.detach()`` can't be right."""

    def loop(model, batches):
        total = 0
        for x in batches:
            total += model(x).square().mean()
        (total / len(batches)).backward()

    return net(), [torch.randn(16, 32)] * 4, loop


def deferred():
    optimizers = []

    def loop(model, batches):
        total = 0.0
        for x in batches:
            total = total + model(x).square().mean() / len(batches)
        total.backward()
        optimizers[:] = optimizers or [torch.optim.AdamW(model.parameters())]
        optimizers[0].step()
        optimizers[0].zero_grad()

    return net(), [torch.randn(16, 32) for _ in range(4)], loop


def useless_retain():
    last = []

    def step(model, x):
        loss = model(x).square().mean()
        loss.backward(retain_graph=True)
        last.append(loss)

    return net(), torch.randn(16, 32), step


def big():
    """8 TiB of parameters: nothing that runs here."""
    return nn.Linear(1 << 20, 1 << 21), torch.randn(4, 1 << 20), lambda model, x: model(x).mean()


def big_and_leaking():
    kept = []

    def step(model, x):
        out = model(x)
        if out.isnan().any():
            raise ValueError("not a number")
        kept.append(out.square())  # LEAK
        return model(x).mean()

    return nn.Linear(1 << 20, 1 << 21), torch.randn(4, 1 << 20), step


def too_large_a_step():
    def step(model, x):
        kept = [x]
        for _ in range(60):
            kept.append(kept[-1].repeat(2, 1))
        return model(kept[-1]).mean()

    return net(), torch.randn(1 << 10, 32), step


def raising():
    raise KeyError("data set")


def step_raises():
    def step(model, x):
        return model(x[:, :3]).mean()

    return net(), torch.randn(4, 32), step


def needs_gpu():
    def step(model, x):
        torch.cuda.synchronize()
        return model(x).mean()

    return net(), torch.randn(4, 32), step


def takes_one_batch():
    def loop(model, batches):
        for x in batches:
            model(x).mean().backward()
            break

    return net(), [torch.randn(4, 32)] * 3, loop


def returns_nothing():
    return None


def hangs():
    time.sleep(600)


def dies():
    os._exit(7)


def prints():
    print("noise on standard output")
    return with_keywords()


def epochs():
    """Goes over its batches twice in a window, by next() and by index."""
    kept = []

    def loop(model, batches):
        for _ in range(2):
            for at in range(len(batches)):
                out = model(batches[at])
                out.mean().backward()
                kept.append(out.detach())  # LEAK

    return net(), [torch.randn(16, 32)] * 3, loop
