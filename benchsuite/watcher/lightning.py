"""A Lightning callback that divides the steps of a watched loader into forward, backward and optimizer.

loader = benchsuite.watch(loader)
trainer = Trainer(callbacks=[WatchCallback(loader)])
trainer.fit(model, loader)
"""

from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ModuleNotFoundError:
    from pytorch_lightning.callbacks import Callback  # type: ignore[assignment]  # the same class by its other name


class WatchCallback(Callback):
    """Marks the parts of each step, and ends the watch when training ends."""

    def __init__(self, watch: Any) -> None:
        self._watch = watch

    def on_before_backward(self, *_: Any) -> None:
        """The loss is there."""
        self._watch.mark("forward")

    def on_after_backward(self, *_: Any) -> None:
        """Gradients are there, exchanged under DDP."""
        self._watch.mark("backward")

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Weights have changed. Lightning does not ask for more after the last batch: validation may follow it."""
        self._watch.mark("optimizer")
        if trainer.is_last_batch or trainer.should_stop or trainer.global_step == trainer.max_steps:
            self._watch.end_pass()

    def on_validation_start(self, *_: Any) -> None:
        """Validation is no part of the step before it, in the middle of a pass either."""
        self._watch.end_pass()

    def on_train_epoch_end(self, *_: Any) -> None:
        """A callback after this one may have stopped the training."""
        self._watch.end_pass()

    def on_train_end(self, *_: Any) -> None:
        """Print what holds the loop back."""
        self._watch.close()
