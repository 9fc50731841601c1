"""Conversion of a Kubeflow TFJob to a TrainJob, with a note on every field that isn't carried over."""

from trainjob.convert.conversion import TFJOB_KIND as TFJOB
from trainjob.convert.conversion import Conversion, Item, convert, describe, is_tfjob, list_items
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
    "is_tfjob",
    "list_items",
]
