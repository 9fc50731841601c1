"""Changes that break one rule of a good job each, with what is said of it; and changes that break none."""

from __future__ import annotations

from typing import Any

from support.world.changes import REMOVED

POD = "spec.template.spec"
TRAINER = f"{POD}.containers[0]"
ALONE = {"spec.worker.replicas": 1, "spec.evaluator.replicas": 0}
OF_AGENTS = {
    "spec.warmStandby": True,
    "spec.stallTimeoutSeconds": 60,
    "spec.worker.minReplicas": 1,
    "spec.code": {"configMap": "digits-code-1", "digest": "0" * 64},
}

BROKEN: tuple[tuple[dict[str, Any], str, str], ...] = (
    # the object
    ({"apiVersion": "v1"}, "apiVersion", 'must be "trainjob.dev/v1alpha1", got "v1"'),
    ({"kind": "Trainjob"}, "kind", 'must be "TrainJob", got "Trainjob"'),
    ({"apiVersion": REMOVED}, "apiVersion", 'required; for example "apiVersion: trainjob.dev/v1alpha1"'),
    ({"metadata": REMOVED}, "metadata", 'required; for example "metadata: {name: digits}"'),
    ({"metadata.name": REMOVED}, "metadata.name", 'required; for example "name: digits"'),
    ({"metadata.name": 7}, "metadata.name", "must be a string, got 7; put it in quotes"),
    ({"metadata.name": "7up"}, "metadata.name", "must start with a lowercase letter"),
    ({"metadata.name": "Digits"}, "metadata.name", "must start with a lowercase letter"),
    ({"metadata.name": "digits-"}, "metadata.name", "end with a letter or digit"),
    ({"metadata.name": "a.b"}, "metadata.name", "hold only lowercase letters"),
    ({"metadata.name": ""}, "metadata.name", "must start with a lowercase letter"),
    ({"metadata.name": "a\n"}, "metadata.name", "must start with a lowercase letter"),
    (
        {"metadata.name": "a" * 60},
        "metadata.name",
        "must have at most 42 characters, so that the names of its pods fit in 63; got 60",
    ),
    ({"metadata.labels": {"example.com/a": 1}}, "metadata.labels[example.com/a]", "must be a string, got 1"),
    ({"spec": REMOVED}, "spec", "required"),
    # the shape of the pod template
    (
        {f"{TRAINER}.command": "python train.py"},
        f"{TRAINER}.command",
        'must be a list, got "python train.py"; for',
    ),
    ({f"{TRAINER}.command": REMOVED}, f"{TRAINER}.command", "needs a command, which the agent starts"),
    ({f"{TRAINER}.command": []}, f"{TRAINER}.command", "needs a command"),
    ({f"{TRAINER}.command": None}, f"{TRAINER}.command", "needs a command"),
    ({f"{TRAINER}.args": [1]}, f"{TRAINER}.args[0]", "must be a string, got 1; put it in quotes"),
    ({f"{TRAINER}.env": "A=b"}, f"{TRAINER}.env", 'must be a list, got "A=b"'),
    (
        {f"{TRAINER}.env": [{"name": "A", "value": 1}]},
        f"{TRAINER}.env[0].value",
        "must be a string, got 1; put",
    ),
    ({f"{TRAINER}.env": [{"value": "1"}]}, f"{TRAINER}.env[0].name", "required"),
    ({f"{TRAINER}.env": [None]}, f"{TRAINER}.env[0]", "must not be empty; remove it"),
    ({f"{TRAINER}.resources": {"limits": 1}}, f"{TRAINER}.resources.limits", "must be an object, got 1"),
    (
        {f"{TRAINER}.ports": [{"containerPort": "80"}]},
        f"{TRAINER}.ports[0].containerPort",
        "must be an integer",
    ),
    ({f"{POD}.volumes": "x"}, f"{POD}.volumes", 'must be a list, got "x"'),
    ({f"{POD}.volumes": ["x"]}, f"{POD}.volumes[0]", 'must be an object, got "x"'),
    ({"spec.template.metadata": []}, "spec.template.metadata", "must be an object, got a list"),
    (
        {"spec.worker.env": [{"name": "A", "value": True}]},
        "spec.worker.env[0].value",
        "must be a string, got true",
    ),
    ({"spec": "two"}, "spec", 'must be an object, got "two"'),
    ({"spec.replicas": 2}, "spec.replicas", "unknown field"),
    ({"spec.workers": {}}, "spec.workers", 'unknown field; did you mean "worker"?'),
    (
        {"spec.worker.output": {}},
        "spec.worker.output",
        "unknown field; it is a field of spec: indent it less",
    ),
    ({"spec.worker": "replicas:2"}, "spec.worker", 'write a space after the colon: "replicas: 2"'),
    # roles
    ({"spec.worker": REMOVED}, "spec.worker", 'required; for example "worker: {replicas: 2}"'),
    ({"spec.worker": None}, "spec.worker", "is empty"),
    ({"spec.chief": None}, "spec.chief", 'is empty; write "chief: {}" for the defaults, or remove it'),
    ({"spec.worker.replicas": 0}, "spec.worker.replicas", "must be at least 1, got 0"),
    ({"spec.worker.replicas": 1001}, "spec.worker.replicas", "must be at most 1000, got 1001"),
    ({"spec.worker.replicas": "two"}, "spec.worker.replicas", 'must be an integer, got "two"'),
    ({"spec.worker.replicas": "2"}, "spec.worker.replicas", 'must be an integer, got "2"'),
    ({"spec.worker.replicas": True}, "spec.worker.replicas", "must be an integer, got true"),
    ({"spec.worker.replicas": 1.5}, "spec.worker.replicas", "must be an integer, got 1.5"),
    (
        {"spec.worker.replicas": 10**30},
        "spec.worker.replicas",
        "must be at most 1000, got a number of more than 20 digits",
    ),
    ({"spec.worker.replica": 2}, "spec.worker.replica", 'unknown field; did you mean "replicas"?'),
    ({"spec.worker.minReplicas": 3}, "spec.worker.minReplicas", "must not be more than replicas, which is 2"),
    ({"spec.worker.min_replicas": 1}, "spec.worker.min_replicas", 'did you mean "minReplicas"?'),
    (
        {"spec.worker.replicas": 1000, "spec.chief": {}, "spec.ps": {"replicas": 1000}},
        "spec.worker.replicas",
        "worker, chief and ps may have 1000 replicas together; ask for fewer",
    ),
    (
        {"spec.worker.replicas": 1000, "spec.chief": {}},
        "spec.worker.replicas",
        "worker, chief and ps may have 1000 replicas together; ask for fewer",
    ),
    ({"spec.chief": {"replicas": 2}}, "spec.chief.replicas", "must be at most 1, got 2"),
    ({"spec.ps": {"replicas": 1}}, "spec.chief", "required with ps"),
    ({"spec.evaluator.replicas": 2}, "spec.evaluator.replicas", "must be at most 1, got 2"),
    ({"spec.evaluator.minReplicas": 1}, "spec.evaluator.minReplicas", "unknown field"),
    ({"spec.worker.nodeSelector": {"pool": 1}}, "spec.worker.nodeSelector.pool", "must be a string, got 1"),
    ({"spec.worker.tolerations": {}}, "spec.worker.tolerations", "must be a list, got an object"),
    ({"spec.worker.tolerations": ["x"]}, "spec.worker.tolerations[0]", 'must be an object, got "x"'),
    ({"spec.worker.env": [{"name": "TF_CONFIG"}]}, "spec.worker.env[0].name", "TF_CONFIG and TRAINJOB_*"),
    ({"spec.worker.priorityClassName": ""}, "spec.worker.priorityClassName", "must not be empty"),
    # the rest of the spec
    ({"spec.suspend": "yes"}, "spec.suspend", 'must be true or false, got "yes"'),
    ({"spec.maxRestarts": -1}, "spec.maxRestarts", "must be at least 0, got -1"),
    ({"spec.activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds", "must be at least 1, got 0"),
    (
        {"spec.restartStrategy": "inplace"},
        "spec.restartStrategy",
        'must be "InPlace" or "Recreate", got "inplace"; did you mean "InPlace"?',
    ),
    *(
        (
            {"spec.restartStrategy": "Recreate", field: value},
            field,
            "needs restartStrategy InPlace",
        )
        for field, value in OF_AGENTS.items()
    ),
    (
        {"spec.restartStrategy": "Recreate", "spec.output": {"uri": "s3://results/digits"}},
        "spec.output.uri",
        "needs restartStrategy InPlace",
    ),
    ({"spec.managedBy": "kueue"}, "spec.managedBy", "must be a domain, a slash and a path"),
    ({"spec.managedBy": "a.b/" + "c" * 60}, "spec.managedBy", "must have at most 63 characters, got 64"),
    # the output
    ({"spec.output": REMOVED}, "spec.output", "required; for example"),
    (
        {"spec.output": {}},
        "spec.output",
        "must have exactly one of claim, nfs, csi, uri, emptyDir, ephemeral",
    ),
    ({"spec.output.emptyDir": {}}, "spec.output", "; got claim and emptyDir"),
    ({"spec.output.uri": "gs://bucket/a"}, "spec.output", "; got claim and uri"),
    *(
        ({"spec.output": {"uri": uri}}, "spec.output.uri", "must be s3://BUCKET/FOLDER")
        for uri in (
            *("file:///data", "S3://bucket", "s3://", "s3://b", "s3://key:secret@bucket/a", "s3://bucket//a"),
            *("s3://bucket/../a", "s3://bucket/a b", "s3://bucket/a?x=1", "az://container/#", "bucket/a"),
        )
    ),
    ({"spec.output.credentials": {"secretName": "key"}}, "spec.output.credentials", "give its uri"),
    (
        {"spec.output": {"uri": "s3://bucket", "credentials": {}}},
        "spec.output.credentials.secretName",
        "required",
    ),
    ({"spec.output": {"emptyDir": {}}}, "spec.output.emptyDir", "can't be shared by several pods"),
    (
        {**ALONE, "spec.chief": {}, "spec.output": {"ephemeral": {}}},
        "spec.output.ephemeral",
        "can't be shared",
    ),
    ({"spec.output.claim": {}}, "spec.output.claim", "must have either claimName"),
    ({"spec.output.claim.size": "1Gi"}, "spec.output.claim", "must have either claimName"),
    ({"spec.output.claim.storageClassName": "fast"}, "spec.output.claim.storageClassName", "give its size"),
    ({"spec.output": {"claim": {"size": "ten"}}}, "spec.output.claim.size", "must be a quantity above zero"),
    ({"spec.output": {"claim": {"size": "0Gi"}}}, "spec.output.claim.size", "must be a quantity above zero"),
    ({"spec.output": {"claim": {"size": "-1Gi"}}}, "spec.output.claim.size", "must be a quantity above zero"),
    ({"spec.output": {"claim": {"size": 10}}}, "spec.output.claim.size", "must be a string, got 10"),
    ({"spec.output.claim.accessModes": []}, "spec.output.claim.accessModes", "must not be empty"),
    ({"spec.output.claim.accessModes": ["RWX"]}, "spec.output.claim.accessModes[0]", "must be"),
    (
        {"spec.output.claim.accessModes": ["ReadWriteOncePod"]},
        "spec.output.claim.accessModes",
        "ReadWriteOncePod is for one pod only",
    ),
    ({"spec.output": {"nfs": {"path": "/a"}}}, "spec.output.nfs.server", "required"),
    (
        {"spec.output": {"nfs": {"server": "a", "path": "b"}}},
        "spec.output.nfs.path",
        "must be an absolute path",
    ),
    ({"spec.output": {"csi": {}}}, "spec.output.csi.driver", "required"),
    ({"spec.output.mountPath": "out"}, "spec.output.mountPath", "must be an absolute path"),
    ({"spec.output.mountPath": "/"}, "spec.output.mountPath", "must be an absolute path"),
    ({"spec.output.mountPath": "/a/../b"}, "spec.output.mountPath", 'without ".."'),
    ({"spec.output.mountPath": "/a:b"}, "spec.output.mountPath", '":"'),
    ({"spec.output.resume": "Always"}, "spec.output.resume", 'must be "Auto" or "Never", got "Always"'),
    # the template
    ({"spec.template": REMOVED}, "spec.template", "required; for example"),
    ({"spec.template": []}, "spec.template", "must be an object, got a list"),
    ({POD: REMOVED}, POD, "required; for example"),
    ({POD: "x"}, POD, 'must be an object, got "x"'),
    ({f"{POD}.containers": REMOVED}, f"{POD}.containers", "required; for example"),
    ({f"{POD}.containers": {}}, f"{POD}.containers", "must be a list, got an object"),
    ({f"{POD}.containers": []}, f"{POD}.containers", 'must have a container named "trainer"'),
    ({f"{TRAINER}.name": "main"}, f"{POD}.containers", 'named "trainer", the one that trains; got "main"'),
    (
        {f"{POD}.containers": [{"name": "trainer"}, "x"]},
        f"{POD}.containers[1]",
        'must be an object, got "x"',
    ),
    ({f"{POD}.containers": [{"name": "trainer"}, {}]}, f"{POD}.containers[1].name", "required"),
    (
        {f"{POD}.containers": [{"name": "trainer"}, {"name": "trainer"}]},
        f"{POD}.containers[1].name",
        "is the name of another container",
    ),
    ({f"{POD}.restartPolicy": "OnFailure"}, f"{POD}.restartPolicy", "must be Never or absent"),
    ({f"{POD}.hostNetwork": True}, f"{POD}.hostNetwork", "must not be true"),
    (
        {f"{POD}.dnsPolicy": "Default"},
        f"{POD}.dnsPolicy",
        "must not be Default, which is the node's DNS",
    ),
    ({f"{POD}.hostname": "a"}, f"{POD}.hostname", "are set for each replica"),
    ({f"{POD}.subdomain": "a"}, f"{POD}.subdomain", "are set for each replica"),
    ({f"{TRAINER}.env": [{"name": "TF_CONFIG"}]}, f"{TRAINER}.env[0].name", 'remove them; got "TF_CONFIG"'),
    ({f"{TRAINER}.env": [{"name": "TRAINJOB_X"}]}, f"{TRAINER}.env[0].name", 'remove them; got "TRAINJOB_X"'),
    ({f"{POD}.volumes": [{"name": "trainjob-output"}]}, f"{POD}.volumes[0].name", "choose another name"),
    ({f"{POD}.volumes": [{"name": "trainjob-bundle"}]}, f"{POD}.volumes[0].name", "volumes that are added"),
    (
        {f"{TRAINER}.volumeMounts": [{"name": "a", "mountPath": "/output/"}]},
        f"{TRAINER}.volumeMounts[0].mountPath",
        "the output is mounted at",
    ),
    (
        {"spec.template.metadata": {"labels": {"trainjob.dev/job": "a"}}},
        "spec.template.metadata.labels[trainjob.dev/job]",
        "keys under trainjob.dev/",
    ),
    (
        {"spec.template.metadata": {"annotations": {"trainjob.dev/job": "a"}}},
        "spec.template.metadata.annotations[trainjob.dev/job]",
        "keys under trainjob.dev/",
    ),
    (
        {"spec.evaluator.template": {"spec": {"containers": [{"name": "main"}]}}},
        "spec.evaluator.template.spec.containers",
        'must have a container named "trainer"',
    ),
    (
        {"spec.evaluator.template": {"spec": {"containers": [{"name": "trainer"}]}}},
        "spec.evaluator.template.spec.containers[0].command",
        "or set spec.restartStrategy: Recreate",
    ),
)

ACCEPTED: tuple[dict[str, Any], ...] = (
    {},
    {"metadata.name": "a" * 42},
    {"metadata.name": "a" * 45, **ALONE},
    {"metadata.name": "a"},
    {"metadata.creationTimestamp": None, "metadata.finalizers": ["example.com/x"]},
    {"spec.evaluator": REMOVED},
    {"spec.worker": {}},
    {"spec.worker.replicas": 2.0},
    {"spec.worker.minReplicas": 2},
    {"spec.chief": {}},
    {"spec.chief": {}, "spec.ps": {"replicas": 3}},
    {**ALONE, "spec.output": {"emptyDir": {}}},
    {**ALONE, "spec.output.claim.accessModes": ["ReadWriteOncePod"]},
    {"spec.output": {"claim": {"size": "1.5Ti", "storageClassName": "nfs", "retain": True}}},
    {"spec.output": {"claim": {"size": "1e3"}}},
    {"spec.output": {"nfs": {"server": "nfs.example.com", "path": "/exports"}}},
    {"spec.output": {"csi": {"driver": "csi.example.com", "volumeAttributes": {"a": "b"}}}},
    *(
        {"spec.output": {"uri": uri}}
        for uri in ("s3://results", "gs://my_results.eu/a/b-c/d.e/", "az://results/team=a/2026")
    ),
    {"spec.output": {"uri": "s3://results/digits", "credentials": {"secretName": "bucket-key"}}},
    {"spec.output.mountPath": "/mnt/a..b"},
    {"spec.managedBy": "kueue.x-k8s.io/multikueue"},
    {"spec.suspend": True, "spec.ttlSecondsAfterFinished": 0, "spec.maxRestarts": 0},
    {"spec.restartStrategy": "Recreate", f"{TRAINER}.command": REMOVED},
    {"spec.restartStrategy": "Recreate", f"{TRAINER}.command": [], "spec.warmStandby": False},
    OF_AGENTS,
    {f"{POD}.restartPolicy": "Never", f"{POD}.hostNetwork": False, f"{POD}.dnsPolicy": "ClusterFirst"},
    {f"{POD}.dnsPolicy": "None", f"{POD}.dnsConfig": {"nameservers": ["169.254.20.10"]}},
    {f"{POD}.containers[0].volumeMounts": [{"name": "a", "mountPath": "/output/data"}]},
    # A sidecar may look at the output and has an environment of its own.
    {
        f"{POD}.containers": [
            {"name": "trainer", "command": ["python", "train.py"]},
            {
                "name": "tensorboard",
                "env": [{"name": "TF_CONFIG", "value": ""}],
                "volumeMounts": [{"name": "trainjob-output", "mountPath": "/output"}],
            },
        ]
    },
    {"spec.template.metadata": {"labels": {"team": "vision"}, "annotations": {"example.com/a": "b"}}},
    {"spec.template.someday": {"new": True}},
)
