# The image of horovod_digits.yaml: Horovod 0.28.1, compiled against TensorFlow 2.12, on Python 3.11.
#   docker build -f examples/horovod.Dockerfile -t ghcr.io/acme/horovod-digits:1 examples
# The agent and the trainer library come from the controller; nothing of TrainJob is in this image.
ARG BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${BASE_IMAGE} AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ make
RUN python3 -m venv /opt/horovod
# The system's certificates, so that a base image (or a mount) can bring a company's own along.
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    PATH=/opt/horovod/bin:$PATH
COPY horovod-requirements.txt ./
RUN pip install --no-cache-dir --requirement horovod-requirements.txt
# No MPI: the ring is Gloo's. For NCCL on GPUs add HOROVOD_GPU_OPERATIONS=NCCL, TensorFlow with CUDA and NCCL's headers.
RUN HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
    HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 \
    pip install --no-cache-dir --no-build-isolation --no-deps --no-binary horovod horovod==0.28.1

FROM ${BASE_IMAGE}
COPY --from=build /opt/horovod /opt/horovod
ENV PATH=/opt/horovod/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp
WORKDIR /workspace
COPY horovod_digits.py ./
USER 65532:65532
CMD ["python"]
