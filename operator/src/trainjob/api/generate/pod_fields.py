"""The names of the fields of Kubernetes' own objects in a TrainJob, so that the API server compares them all.

Where fields are preserved but not in the schema, `==` in a rule is true of two objects that have equally many
fields and none in common: `command` could be changed into `args` however immutable the template is
(`unstructuredMap.Equal` in k8s.io/apiserver/pkg/cel/common/values.go, Kubernetes 1.34). A field whose name is
in the schema is missed, and below it everything is compared, as below a field of any type.
"""

from __future__ import annotations

from typing import Any

from trainjob.api.fields import PRESERVED

Schema = dict[str, Any]

FIELDS: dict[str, tuple[str, ...]] = {
    kind: tuple(names.split())
    for kind, names in {
        "PodTemplateSpec": "metadata spec",
        "PodSpec": """activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig
            dnsPolicy enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers
            hostname hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os overhead
            preemptionPolicy priority priorityClassName readinessGates resourceClaims resources restartPolicy
            runtimeClassName schedulerName schedulingGates securityContext serviceAccount serviceAccountName
            setHostnameAsFQDN shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations
            topologySpreadConstraints volumes workloadRef""",
        "Container": """args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports
            readinessProbe resizePolicy resources restartPolicy restartPolicyRules securityContext
            startupProbe stdin stdinOnce terminationMessagePath terminationMessagePolicy tty volumeDevices
            volumeMounts workingDir""",
        "EnvVar": "name value valueFrom",
        "VolumeMount": "mountPath mountPropagation name readOnly recursiveReadOnly subPath subPathExpr",
        "Volume": """awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI emptyDir
            ephemeral fc flexVolume flocker gcePersistentDisk gitRepo glusterfs hostPath image iscsi name nfs
            persistentVolumeClaim photonPersistentDisk portworxVolume projected quobyte rbd scaleIO secret
            storageos vsphereVolume""",
        "ResourceRequirements": "claims limits requests",
        "Toleration": "effect key operator tolerationSeconds value",
        "Affinity": "nodeAffinity podAffinity podAntiAffinity",
        "CSIVolumeSource": "driver fsType nodePublishSecretRef readOnly volumeAttributes",
        "EmptyDirVolumeSource": "medium sizeLimit",
        "EphemeralVolumeSource": "volumeClaimTemplate",
    }.items()
}
"""By kind, as Kubernetes names it."""


def name_fields(schema: Schema, kind: str) -> None:
    """Add the fields that the schema of an object of this kind doesn't have yet: anything may be in them."""
    fields = schema.setdefault("properties", {})
    for name in FIELDS[kind]:
        fields.setdefault(name, {PRESERVED: True})
