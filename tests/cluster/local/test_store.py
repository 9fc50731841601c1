from datetime import UTC, datetime

from trainjob.cluster.local.cluster import ObjectStore


def test_what_is_the_servers_to_write_is_left_out() -> None:
    store = ObjectStore(lambda: datetime(2026, 1, 2, tzinfo=UTC), lambda: None)
    metadata = {
        "name": "digits",
        "namespace": None,
        "labels": None,
        "uid": "of a cluster",
        "resourceVersion": "77",
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 0,
        "annotations": {"a": "b"},
    }
    given = {"kind": "TrainJob", "metadata": metadata, "spec": {}, "status": {"state": "Complete"}}
    added = store.add(given)
    assert "status" not in added
    assert added["metadata"].pop("uid") not in ("", "of a cluster")
    assert added["metadata"] == {
        "name": "digits",
        "namespace": "default",
        "annotations": {"a": "b"},
        "generation": 1,
        "creationTimestamp": "2026-01-02T00:00:00.000000Z",
        "resourceVersion": "1",
    }
    assert given["metadata"]["uid"] == "of a cluster"  # type: ignore[index]
