"""Hooks into frameworks: a line in HOOKS and a file or folder each, imported when needed."""

from __future__ import annotations

from typing import Any, Final

import wrapt

from tracelens.errors import InvalidArgument
from tracelens_instrument.core.attachments import attached, note_started
from tracelens_instrument.hooks import garbage
from tracelens_instrument.hooks.base import Hook

__all__ = ["HOOKS", "attach", "attached", "install"]

_PACKAGE: Final = "tracelens_instrument.hooks"

HOOKS: Final[tuple[Hook, ...]] = (
    Hook("PyTorch", f"{_PACKAGE}.torch.hook", "torch", "a torch.nn.Module (also DDP)"),
    Hook("TensorFlow", f"{_PACKAGE}.tensorflow.hook", "tensorflow", ""),
    Hook("Horovod", f"{_PACKAGE}.horovod", "horovod.torch", ""),
    Hook("Lightning", f"{_PACKAGE}.trainers.lightning", "lightning.pytorch", "a Lightning Trainer"),
    Hook(
        "Hugging Face",
        f"{_PACKAGE}.trainers.huggingface",
        "transformers.trainer",
        "a Hugging Face Trainer",
    ),
    Hook("JAX", f"{_PACKAGE}.jax", "jax", ""),
    Hook("mpi4py", f"{_PACKAGE}.mpi.hook", "mpi4py.MPI", "an mpi4py communicator"),
)

_installed: set[str] = set()


def attach(obj: Any, **options: Any) -> Any:
    """Record what `obj` does from now on; use what is returned in its place.

    A PyTorch module: ``attach(model, optimizer=optimizer, loader=loader)`` returns the model.
    An mpi4py communicator: ``attach(comm)`` returns a communicator that records itself.
    A Trainer of Lightning or Hugging Face: ``attach(trainer)`` returns the trainer.

    Raises:
        InvalidArgument: an object that no hook knows, or an option that its hook does not have.
    """
    attachable_hooks = [hook for hook in HOOKS if hook.attachable_objects]  # it says what, in words
    for hook in attachable_hooks:
        if hook.is_framework_loaded:
            hook_module = hook.load()
            if hook_module.matches(obj):
                return hook_module.attach(obj, **options)
    attachable_objects = ", ".join(hook.attachable_objects for hook in attachable_hooks)
    raise InvalidArgument(
        f"attach got {type(obj).__qualname__!r}, expected one of: {attachable_objects}."
    )


def install() -> None:
    """Record every framework in HOOKS when the program imports it, or now if it has.

    And Python itself, where it pauses to collect garbage.
    """
    note_started()
    garbage.install()
    for hook in HOOKS:
        if hook.framework_name not in _installed:
            _installed.add(hook.framework_name)
            wrapt.register_post_import_hook(hook.install, hook.framework_module)
