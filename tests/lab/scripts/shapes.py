"""Ways to keep memory alive, each written in another style. LEAK marks the line that stores."""

from __future__ import annotations

import collections
import functools
import types
from dataclasses import dataclass, field

import torch
from torch import nn


def net():
    return nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))


def data(n=6):
    return [torch.randn(16, 32) for _ in range(n)]


def in_dict():
    def loop(model, batches):
        seen = {}
        for number, x in enumerate(batches):
            out = model(x)
            out.mean().backward()
            seen[number] = model(x)  # LEAK

    return net(), data(), loop


def in_deque():
    window = collections.deque(maxlen=100)

    def step(model, x):
        out = model(x)
        window.append(out.detach().clone())  # LEAK
        return out.mean()

    return net(), data()[0], step


class Meter:
    def __init__(self):
        self.values = []

    def update(self, value, n=1):
        self.values.append((value, n))  # LEAK meter


def in_attribute_of_a_helper():
    meter = Meter()

    def step(model, x):
        out = model(x)
        meter.update(out.pow(2).mean(dim=-1) @ torch.ones(16, 256), len(x))
        return out.mean()

    return net(), data()[0], step


HISTORY: list = []


def in_global():
    def step(model, x):
        out = model(x)
        HISTORY.append(out)  # LEAK
        return out.detach().requires_grad_().mean()

    return net(), data()[0], step


def in_closure_sum():
    total = torch.zeros(())

    def step(model, x):
        nonlocal total
        total = total + model(x).pow(2).mean()  # LEAK

    return net(), data()[0], step


def in_generator():
    def smooth():
        kept, value = [], None
        while True:
            kept.append(value)  # LEAK
            value = yield len(kept)

    smoother = smooth()
    next(smoother)

    def step(model, x):
        out = model(x)
        smoother.send(out)
        return out.sum() * 0 + model(x).mean()

    return net(), data()[0], step


@dataclass
class Record:
    losses: list = field(default_factory=list)
    latest: object = None


def in_dataclass():
    record = Record()

    def loop(model, loader):
        for x in loader:
            loss = model(x).square().mean()
            record.latest = loss
            record.losses = [*record.losses, loss]  # LEAK
        sum(record.losses).backward()
        record.losses = []

    return net(), data(), loop


def in_hook():
    model = net()
    features = []
    model[1].register_forward_hook(lambda module, inputs, output: features.append(output))  # LEAK

    def step(model, x):
        return model(x).mean()

    return model, data()[0], step


def in_nested_function():
    def loop(model, batches):
        kept = []

        def forward(x, store=kept):
            out = model(x)
            store.insert(0, out)  # LEAK
            return out

        for x in batches:
            forward(x).detach()

    return net(), data(), loop


class Trainer:
    def __init__(self, model):
        self.model, self.log, self.step_number = model, collections.defaultdict(list), 0

    def compute_loss(self, x):
        out = self.model(x)
        self._log("activations", out)
        return out.mean()

    def _log(self, key, value):
        self.log[key].append(value)  # LEAK

    def training_step(self, model, x):
        loss = self.compute_loss(x)
        loss.detach()
        self.step_number += 1


def in_trainers_log():
    trainer = Trainer(net())
    return trainer.model, data()[0], trainer.training_step


def in_default_argument():
    def step(model, x, cache=[]):  # noqa: B006
        cache += [model(x)]  # LEAK
        return model(x).mean()

    return net(), data()[0], step


def in_module_buffer():
    class Memory(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = net()
            self.register_buffer("bank", torch.zeros(0, 32), persistent=False)

        def forward(self, x):
            out = self.body(x)
            self.bank = torch.cat([self.bank, out])  # LEAK
            return out

    def step(model, x):
        return model(x).mean() + 0 * model.body(x).mean()

    return Memory(), data()[0], step


def in_alias():
    state = types.SimpleNamespace(buffers={"out": []})

    def step(model, x):
        store = state.buffers["out"]
        out = model(x)
        store.append(out.detach())  # LEAK
        return out.mean()

    return net(), data()[0], step


def in_partial():
    def keep(where, what):
        where |= {what}  # LEAK

    remember = functools.partial(keep, set())

    def step(model, x):
        out = model(x)
        remember(out)
        return model(x).mean()

    return net(), data()[0], step


class Step:
    def __init__(self, before, out):
        self.before, self.out = before, out


def in_linked_list():
    def loop(model, batches):
        last = None
        for x in batches:
            last = Step(last, model(x))  # LEAK
        return last

    return net(), data(), loop


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.doubled = x * 2  # LEAK hidden
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.doubled.mean()


def in_context_of_a_kept_loss():
    losses = []

    def step(model, x):
        loss = Scale.apply(model(x)).mean()
        losses.append(loss)  # LEAK
        return loss

    return net(), data()[0], step


def in_tensor_hook():
    norms = []

    def step(model, x):
        out = model(x)
        out.register_hook(lambda grad: norms.append(grad.clone()))  # LEAK
        return out.mean()

    return net(), data()[0], step


def auxiliary_head_never_backpropagated():
    extra = nn.Linear(32, 64)

    def loop(model, loader):
        auxiliary = []
        for x in loader:
            out = model(x)
            auxiliary.append(extra(out.detach()).tanh())  # LEAK
            out.mean().backward()

    return net(), data(), loop


# --- and loops that keep nothing, though they look like it


def healthy_scalars():
    log = {"loss": []}

    def step(model, x):
        loss = model(x).mean()
        log["loss"].append(loss.item())
        return loss

    return net(), data()[0], step


def healthy_last_output():
    holder = types.SimpleNamespace(last=None)

    def step(model, x):
        holder.last = model(x)
        return holder.last.mean()

    return net(), data()[0], step


def healthy_short_deque():
    recent = collections.deque(maxlen=2)

    def step(model, x):
        out = model(x)
        recent.append(out.detach())
        return out.mean()

    return net(), data()[0], step


def healthy_average_of_weights():
    model = net()
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters())

    def loop(model, batches):
        for x in batches:
            model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for name, p in model.named_parameters():
            average[name] = average[name] * 0.9 + p.detach() * 0.1

    return model, data(), loop


def healthy_cache():
    @functools.lru_cache
    def mask(n):
        return torch.ones(n, n).tril()

    def step(model, x):
        return (mask(16) @ model(x)).mean()

    return net(), data()[0], step


def healthy_to_cpu():
    device = torch.device("cuda")
    predictions = []

    def loop(model, dataloader):
        with torch.no_grad():
            for x in dataloader:
                predictions.append(model(x.to(device)).cpu())  # noqa: PERF401 (as it is written)

    return net(), data(), loop


def healthy_checkpointed():
    from torch.utils.checkpoint import checkpoint

    def loop(model, batches):
        for x in batches:
            checkpoint(model, x, use_reentrant=False).mean().backward()

    return net(), data(), loop


def healthy_accumulated_grads():
    def loop(model, batches):
        running = 0.0
        for x in batches:
            loss = model(x).square().mean() / len(batches)
            loss.backward()
            running += loss.detach()
        return running / len(batches)

    return net(), data(), loop


def in_caught_exception():
    errors = []

    def step(model, x):
        out = model(x)
        try:
            raise ValueError(out.shape)
        except ValueError as error:
            errors.append(error)  # LEAK
        return model(x).mean()

    return net(), data()[0], step


def in_last_of_window():
    curve = []

    def loop(model, loader):
        for x in loader:
            out = model(x)
            out.mean().backward()
        curve.append(model(x))  # LEAK

    return net(), data(), loop


def healthy_two_models():
    generator, judge = net(), nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizers = [torch.optim.Adam(m.parameters()) for m in (generator, judge)]

    def loop(model, loader):
        for real in loader:
            fake = generator(torch.randn_like(real))
            optimizers[1].zero_grad()
            (judge(fake.detach()).mean() - judge(real).mean()).backward()
            optimizers[1].step()
            optimizers[0].zero_grad()
            (-judge(fake).mean()).backward()
            optimizers[0].step()

    return nn.ModuleList([generator, judge]), data(), loop


def healthy_growing_lengths():
    hidden = types.SimpleNamespace(last=None)

    def loop(model, batches):
        for x in batches:
            out = model(x)
            hidden.last = out.detach()
            out.mean().backward()

    return net(), [torch.randn(16 * n, 32) for n in range(1, 7)], loop


def summed_until_the_fourth_micro_step():
    def loop(model, loader):
        optimizer = torch.optim.AdamW(model.parameters())
        history, total = [], 0
        for number, x in enumerate(loader):
            out = model(x)
            total += out.square().mean()  # LEAK
            history.append(out.detach().norm().expand(64).clone())
            if (number + 1) % 4 == 0:
                (total / 4).backward()
                optimizer.step()
                optimizer.zero_grad()
                total = 0

    return net(), data(8), loop


def evaluation_in_a_file_that_also_trains():
    def loop(model, loader):
        kept = []
        for number, x in enumerate(loader):
            kept.append((number, model(x)))  # LEAK

    return net(), data(), loop


def backward_after_the_loop():
    def loop(model, loader):
        total = 0
        for x in loader:
            total = total + model(x).mean()  # LEAK
        total.backward()

    return net(), data(), loop
