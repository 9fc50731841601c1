"""Reading YAML and JSON as kubectl does, with the line of each field."""

from trainjob.api.reading.documents import Document, read_documents

__all__ = ["Document", "read_documents"]
