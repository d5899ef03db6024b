"""Training loops in public that keep nothing, restated. Each says where."""

from __future__ import annotations

import contextlib

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, s, w = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.before(x)).split(w, dim=2))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, s, w))
        return x + self.mlp(self.after(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary=65, width=32, length=32, layers=2):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, targets=None):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        loss = None if targets is None else functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def gpt_accumulation():
    """Micro-steps that fetch the next batch during the forward, scale the loss, and log it as a number.

    https://github.com/karpathy/nanoGPT/blob/master/train.py
    """
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=False)

    def window(model, batches):
        source = iter(batches)
        x, y = next(source)
        steps = len(batches)
        for _ in range(steps):
            with contextlib.nullcontext():
                _, loss = model(x, y)
                loss = loss / steps
            with contextlib.suppress(StopIteration):
                x, y = next(source)
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss.item() * steps

    batches = [(torch.randint(65, (4, 32)), torch.randint(65, (4, 32))) for _ in range(5)]
    return model, batches, window


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
        self.actor = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))

    def act(self, x, action=None):
        chosen = torch.distributions.Categorical(logits=self.actor(x))
        action = chosen.sample() if action is None else action
        return action, chosen.log_prob(action), chosen.entropy(), self.critic(x)


def ppo_rollout():
    """A rollout written into buffers of fixed size without gradients, then epochs over them.

    https://github.com/vwxyzjn/cleanrl/blob/master/cleanrl/ppo.py
    """
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
    steps, envs = 8, 32
    observations = torch.zeros(steps, envs, 8)
    log_probs, values, actions = torch.zeros(steps, envs), torch.zeros(steps, envs), torch.zeros(steps, envs)

    def iteration(agent, batches):
        for at, observed in enumerate(batches):
            observations[at] = observed
            with torch.no_grad():
                action, log_prob, _, value = agent.act(observed)
                values[at] = value.flatten()
            actions[at], log_probs[at] = action, log_prob
        flat, old = observations.flatten(0, 1), log_probs.flatten()
        clipped = []
        for _ in range(2):
            _, new, entropy, value = agent.act(flat, actions.flatten())
            ratio = (new - old).exp()
            with torch.no_grad():
                clipped += [((ratio - 1.0).abs() > 0.2).float().mean().item()]
            loss = -ratio.clamp(0.8, 1.2).mean() - 0.01 * entropy.mean() + value.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return agent, [torch.randn(envs, 8) for _ in range(steps)], iteration


def repackage_hidden(hidden):
    if isinstance(hidden, torch.Tensor):
        return hidden.detach()
    return tuple(repackage_hidden(one) for one in hidden)


def language_model_with_truncated_state():
    """The state is detached before each batch; the loss is summed as a number.

    https://github.com/pytorch/examples/blob/main/word_language_model/main.py
    """
    model = nn.ModuleDict({"encoder": nn.Embedding(50, 32), "rnn": nn.LSTM(32, 64), "decoder": nn.Linear(64, 50)})

    def train(model, data_source_batches):
        total_loss = 0.0
        hidden = (torch.zeros(1, 8, 64), torch.zeros(1, 8, 64))
        for data, targets in data_source_batches:
            model.zero_grad()
            hidden = repackage_hidden(hidden)
            output, hidden = model["rnn"](model["encoder"](data), hidden)
            loss = functional.cross_entropy(model["decoder"](output).flatten(0, 1), targets.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-0.1)
            total_loss += loss.item()
        return total_loss

    return model, [(torch.randint(50, (12, 8)), torch.randint(50, (12, 8))) for _ in range(4)], train


def segmentation_of_square_images():
    """Every tensor of a segmentation is as square as its images, the softmax over classes too."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 4, 3, padding=1))

    def step(model, data):
        image, mask = data
        return -model(image).softmax(1).log().gather(1, mask).mean()

    return model, (torch.randn(2, 3, 48, 48), torch.randint(0, 4, (2, 1, 48, 48))), step
