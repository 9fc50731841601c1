"""The systems that can decide when and where a job's pods run."""

from trainjob.core.integration import Integration
from trainjob.core.integrations.kueue import Kueue
from trainjob.core.integrations.podgroups import PodGroups

INTEGRATIONS: tuple[type[Integration], ...] = (Kueue, PodGroups)
