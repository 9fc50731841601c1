"""From a Kubeflow TFJob to a TrainJob: what carries over, and a note on every field that doesn't."""

from trainjob.convert.conversion import Conversion, convert
from trainjob.convert.documents import KIND as TFJOB
from trainjob.convert.documents import Item, describe, is_tfjob, list_items
from trainjob.convert.ledger import Note
from trainjob.convert.output import PLACEHOLDER_CLAIM

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
