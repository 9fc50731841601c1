"""The impure half: look, decide by `trainjob.core.plan`, write. It knows no kopf; a shell around it does."""

from trainjob.controller.controller import Controller, Load
from trainjob.controller.queue import WorkQueue
from trainjob.controller.reconciler import Reconciler

__all__ = ["Controller", "Load", "Reconciler", "WorkQueue"]
