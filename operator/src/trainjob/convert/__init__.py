"""Conversion of a Kubeflow TFJob or MPIJob to a TrainJob, with a note on all that isn't carried over."""

from trainjob.convert.conversion import TFJOB_KIND as TFJOB
from trainjob.convert.conversion import (
    Conversion,
    Item,
    convert,
    describe,
    describe_other,
    is_convertible,
    list_items,
)
from trainjob.convert.notes import Note
from trainjob.convert.pod_templates import PLACEHOLDER_CLAIM

__all__ = [
    "PLACEHOLDER_CLAIM",
    "TFJOB",
    "Conversion",
    "Item",
    "Note",
    "convert",
    "describe",
    "describe_other",
    "is_convertible",
    "list_items",
]
