"""Where a job's checkpoints and logs go."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict

from trainjob.api.fields import KubernetesObject, Name, Part

AccessMode = Literal["ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"]


class Claim(Part):
    """A PersistentVolumeClaim: one that exists (claimName), or one that the job creates (size)."""

    claim_name: Name | None = Field(
        None, description="A claim that exists in the job's namespace.", examples=["training"]
    )
    size: Annotated[str, Field(min_length=1, max_length=32)] | None = Field(
        None, description="Creates a claim of this size for the job.", examples=["10Gi"]
    )
    storage_class_name: Name | None = Field(
        None,
        description="Storage class of the created claim; absent: the default one.",
        examples=["nfs"],
    )
    access_modes: Annotated[tuple[AccessMode, ...], Strict(False), Field(min_length=1, max_length=3)] = Field(
        ("ReadWriteMany",), description="Access modes of the created claim; all replicas write into it."
    )
    retain: bool = Field(False, description="Keeps the created claim when the job is deleted.")


class Nfs(Part):
    """A folder that an NFS server exports."""

    server: Name = Field(description="Name or address of the NFS server.", examples=["nfs.example.com"])
    path: Annotated[str, Field(min_length=1, max_length=1024)] = Field(
        description="The exported folder, an absolute path.", examples=["/exports/training"]
    )


class Output(Part):
    """Where checkpoints and logs go: exactly one of claim, nfs, csi, uri, emptyDir, ephemeral."""

    claim: Claim | None = Field(
        None, description="A PersistentVolumeClaim.", examples=["{claimName: training}"]
    )
    nfs: Nfs | None = Field(
        None,
        description="A folder of an NFS server.",
        examples=["{server: nfs.example.com, path: /exports/training}"],
    )
    csi: KubernetesObject | None = Field(
        None,
        description="An inline CSI volume, as in a pod.",
        examples=["{driver: csi.example.com}"],
    )
    uri: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        None,
        description="A folder in Google Cloud Storage, which TensorFlow reads and writes by itself.",
        examples=["gs://bucket/training"],
    )
    empty_dir: KubernetesObject | None = Field(
        None, description="A volume that ends with its pod; only for a job of one replica.", examples=["{}"]
    )
    ephemeral: KubernetesObject | None = Field(
        None, description="A claim that ends with its pod; only for a job of one replica."
    )
    mount_path: Annotated[str, Field(min_length=1, max_length=1024)] = Field(
        "/output", description="Where the volume is mounted in the trainer container."
    )
    resume: Literal["Auto", "Never"] = Field(
        "Auto",
        description="Auto goes on from the newest checkpoint; Never starts over in a new subfolder.",
    )
