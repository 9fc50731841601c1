"""The TrainJob API `trainjob.dev/v1alpha1`: the typed model, its rules, and reading it from files."""

from trainjob.api.errors import FieldError, InvalidTrainJob
from trainjob.api.group import (
    AGENT_PORT,
    API_VERSION,
    BUNDLE_VOLUME,
    CONTROLLER,
    GROUP,
    KIND,
    OUTPUT_VOLUME,
    PLURAL,
    PORT,
    STATE_VOLUME,
    TRAINER_CONTAINER,
    VERSION,
)
from trainjob.api.job import TrainJob
from trainjob.api.metadata import ObjectMeta
from trainjob.api.names import longest_name
from trainjob.api.output import Claim, Nfs, Output
from trainjob.api.parsing import parse
from trainjob.api.reading import Document, read_documents
from trainjob.api.roles import ChiefRole, EvaluatorRole, Role, WorkerRole
from trainjob.api.spec import TrainJobSpec
from trainjob.api.status import (
    Condition,
    Evaluation,
    FirstFailure,
    OutputStatus,
    Progress,
    Restarts,
    Spent,
    Straggler,
    TrainJobStatus,
    WorkerStatus,
)

__all__ = [
    "AGENT_PORT",
    "API_VERSION",
    "BUNDLE_VOLUME",
    "CONTROLLER",
    "GROUP",
    "KIND",
    "OUTPUT_VOLUME",
    "PLURAL",
    "PORT",
    "STATE_VOLUME",
    "TRAINER_CONTAINER",
    "VERSION",
    "ChiefRole",
    "Claim",
    "Condition",
    "Document",
    "Evaluation",
    "EvaluatorRole",
    "FieldError",
    "FirstFailure",
    "InvalidTrainJob",
    "Nfs",
    "ObjectMeta",
    "Output",
    "OutputStatus",
    "Progress",
    "Restarts",
    "Role",
    "Spent",
    "Straggler",
    "TrainJob",
    "TrainJobSpec",
    "TrainJobStatus",
    "WorkerRole",
    "WorkerStatus",
    "longest_name",
    "parse",
    "read_documents",
]
