"""Which namespace a document goes into."""

from trainjob.api import Document
from trainjob.cli.files import RefusedFile


def namespace_of(document: Document, asked: str | None, context: str) -> str:
    """Return the namespace: what is asked for, else what the file says, else the context's.

    Raises:
        RefusedFile: the file says another one than is asked for.
    """
    own = document.raw["metadata"].get("namespace")
    if asked and own and asked != own:
        line = document.line_of("metadata.namespace")
        raise RefusedFile(
            [
                f"{document.source}:{line} metadata.namespace: is {own}, but -n asks for {asked};"
                " leave out one of the two"
            ]
        )
    return str(asked or own or context)
