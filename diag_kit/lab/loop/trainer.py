"""A transformers Trainer, looked at through its own ``training_step`` over its own data."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from .result import Loop, LoopError

if TYPE_CHECKING:
    from .forms import Batches, Job


def inspect_trainer(trainer: Any, **how: Any) -> Loop:
    """What stays alive between the micro-steps of a Trainer; ``how`` as for ``inspect_loop``.

    Its ``training_step`` is called on the batches of its data loader, and its optimizer once in a window. Callbacks,
    logging and checkpoints are not run. The model is trained by some steps: hand over one that may be.
    """
    from .survey import inspect_loop

    def factory() -> Any:
        return trainer

    factory.__qualname__ = type(trainer).__qualname__
    return inspect_loop(factory, **how)


def of_trainer(trainer: Any, name: str, count: int) -> Job:
    """The job that a Trainer makes."""
    from .forms import Job

    drawn = list(itertools.islice(iter(trainer.get_train_dataloader()), count))
    if not drawn:
        raise LoopError(f"{name}: the Trainer's data loader is empty; give it a data set")
    model = trainer.model
    optimizer = trainer.optimizer or trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = count - 1  # what its own loop tells its step

    def window(batches: Batches) -> None:
        model.train()
        for inputs in batches:
            trainer.training_step(model, dict(inputs) if hasattr(inputs, "keys") else inputs)
        optimizer.step()
        model.zero_grad(set_to_none=True)

    batches = [drawn[at % len(drawn)] for at in range(count)]
    return Job(name, "trainer", model, batches, window, {"trainer": trainer})
