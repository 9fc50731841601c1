"""What an API server does when it is asked to: lists in pages, creations, and changes under preconditions."""

from __future__ import annotations

from dataclasses import dataclass

from support.kube.api_server.addresses import Kind, matches, merge
from support.kube.api_server.answers import ApiError, gone, status_object
from support.kube.api_server.storage import ApiObjects, Manifest, Place, copied

GET_METADATA = "PartialObjectMetadata"


@dataclass
class Seen:
    """One request, as the server saw it."""

    verb: str
    kind: str
    name: str
    query: dict[str, str]
    token: str | None
    peer: object = None
    body: Manifest | None = None


class ApiRules(ApiObjects):
    """A page has at most `page_limit` items, for any limit of the client."""

    def __init__(self) -> None:
        super().__init__()
        self.page_limit = 500
        self._pages: dict[str, tuple[list[Manifest], int]] = {}

    def compact(self) -> None:
        super().compact()
        self._pages.clear()

    def work(self, seen: Seen, kind: Kind, namespace: str | None, sub: str) -> Manifest:
        if seen.verb == "list":
            return self._list(seen, kind, namespace)
        assert namespace is not None
        if seen.verb == "create":
            return self._create(seen, kind, namespace)
        place = kind.kind, namespace, seen.name
        stored = self.objects.get(place)
        if stored is None:
            raise ApiError(404, "NotFound", f'{kind.plural} "{seen.name}" not found')
        if seen.verb == "get":
            partial = {"kind": "PartialObjectMetadata", "metadata": stored["metadata"]}
            return partial if GET_METADATA in seen.query["accept"] else stored
        assert seen.body is not None
        if seen.verb == "delete":
            return self._delete(stored, seen.body)
        return self._change(seen, place, stored, sub)

    def _create(self, seen: Seen, kind: Kind, namespace: str) -> Manifest:
        assert seen.body is not None
        if (kind.kind, namespace, seen.name) in self.objects:
            raise ApiError(409, "AlreadyExists", f'{kind.plural} "{seen.name}" already exists')
        assert seen.query.get("fieldValidation") == ("Ignore" if kind.kind == "Workload" else "Strict")
        body = copied(seen.body)
        if kind.kind == "Pod":
            body["status"] = {"phase": "Pending"}
        return self.put(body)

    def _delete(self, stored: Manifest, options: Manifest) -> Manifest:
        _check_uid(stored, options.get("preconditions", {}).get("uid"))
        meta = stored["metadata"]
        phase = stored.get("status", {}).get("phase")
        if stored["kind"] == "Pod" and phase == "Running" and options.get("gracePeriodSeconds") != 0:
            changed = copied(stored)
            changed["metadata"].setdefault("deletionTimestamp", self.now())
            changed["metadata"]["deletionGracePeriodSeconds"] = 30
            return self.put(changed)
        self.remove(stored["kind"], meta["name"], meta["namespace"])
        return status_object(200, "", "deleted") | {"status": "Success"}

    def _change(self, seen: Seen, place: Place, stored: Manifest, sub: str) -> Manifest:
        assert seen.body is not None
        _check_uid(stored, seen.body.get("metadata", {}).get("uid"), patching=seen.verb == "patch")
        version = seen.body.get("metadata", {}).get("resourceVersion")
        if version is not None and version != stored["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        changed = copied(stored)
        if seen.verb == "patch":
            merge(changed, seen.body)
        elif sub:
            changed[sub] = copied(seen.body[sub])
        else:
            changed = copied(seen.body)
        changed["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
        if changed != stored:
            self.store(place, changed, stored)
        if "deletionTimestamp" in changed["metadata"] and stored["metadata"].get("finalizers"):
            self._end_of_wait(changed)
        return changed

    def _end_of_wait(self, changed: Manifest) -> None:
        meta = changed["metadata"]
        if not meta.get("finalizers"):
            self.remove(changed["kind"], meta["name"], meta["namespace"])

    def _list(self, seen: Seen, kind: Kind, namespace: str | None) -> Manifest:
        token = seen.query.get("continue")
        if token is None:
            selector = seen.query.get("labelSelector", "")
            items = [
                copied(o)
                for (k, n, _), o in sorted(self.objects.items())
                if k == kind.kind and namespace in (None, n) and matches(o, selector)
            ]
            version = self.version
        elif token in self._pages:
            items, version = self._pages[token]
        else:
            raise gone()
        limit = min(int(seen.query["limit"]), self.page_limit) if "limit" in seen.query else len(items)
        page, rest = items[:limit], items[limit:]
        meta: Manifest = {"resourceVersion": str(version)}
        if rest:
            meta["continue"] = f"page-{len(self.seen)}"
            self._pages[meta["continue"]] = rest, version
        if GET_METADATA in seen.query["accept"]:
            page = [{"kind": "PartialObjectMetadata", "metadata": item["metadata"]} for item in page]
        elif kind.kind != "TrainJob":
            for item in page:  # as Kubernetes does with its own kinds
                del item["kind"], item["apiVersion"]
        return {"kind": f"{kind.kind}List", "metadata": meta, "items": page}


def _check_uid(stored: Manifest, uid: str | None, *, patching: bool = False) -> None:
    if uid is None or uid == stored["metadata"]["uid"]:
        return
    if patching:
        causes = [{"reason": "FieldValueInvalid", "message": "immutable", "field": "metadata.uid"}]
        raise ApiError(422, "Invalid", "metadata.uid: field is immutable", causes=causes)
    raise ApiError(409, "Conflict", "the UID in the precondition does not match the UID in record")
