"""The controller: observe, decide by `trainjob.core.plan`, write. Only `kopf_watch` imports kopf."""

from trainjob.controller.loop import Controller, Load
from trainjob.controller.queue import WorkQueue
from trainjob.controller.reconciler import Reconciler

__all__ = ["Controller", "Load", "Reconciler", "WorkQueue"]
