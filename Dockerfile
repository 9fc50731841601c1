# Two images from one file: `operator` (the controller, no TensorFlow) and `trainer` (TensorFlow, Keras and the
# trainer library; what a training image of your own starts from). docs/images.md tells how to build and use them.
#
# Everything comes from uv.lock, by hash. Dependencies are a layer of their own: a changed source rebuilds only the
# small layer above them.
#
# The base image is the tag's index for all platforms, by digest. Dependabot proposes the next one, and reads it from a FROM only.
ARG BASE_IMAGE=base
FROM docker.io/library/python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS base

# --- build: uv, the build backend and the lock file; nothing of it is in an image but what is copied out --------------
FROM ${BASE_IMAGE} AS build
# A mirror, if you have one: the hashes hold there too.
ARG PIP_INDEX_URL=https://pypi.org/simple
ARG UV_DEFAULT_INDEX=https://pypi.org/simple
# The system's certificates, so that a base image (or a mount) can bring a company's own along.
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    UV_NO_CACHE=1 \
    UV_PYTHON=/opt/trainjob/bin/python \
    UV_PYTHON_DOWNLOADS=never \
    PATH=/opt/build/bin:$PATH
COPY build-tools.txt /opt/
RUN python3 -m venv /opt/build \
 && pip install --no-cache-dir --require-hashes --only-binary :all: -r /opt/build-tools.txt
WORKDIR /source
COPY pyproject.toml uv.lock ./
COPY operator/pyproject.toml operator/
COPY trainer/pyproject.toml trainer/

# --- operator ---------------------------------------------------------------------------------------------------------
FROM build AS operator-dependencies
# The official client reads kubeconfigs and runs programs in pods, for people's own machines. It is a third of all
# dependencies, and kopf would import all of it where it is installed.
RUN python3 -m venv --without-pip /opt/trainjob \
 && uv export --frozen --quiet --no-dev --no-emit-workspace --package trainjob --extra controller \
      --prune kubernetes -o requirements.txt \
 && uv pip install --require-hashes --only-binary :all: --compile-bytecode -r requirements.txt \
 && rm -f /opt/trainjob/.lock

# The trainer library comes along as source: the controller packs it, with the agent, into a Secret for each job.
FROM operator-dependencies AS operator-package
COPY trainer/ trainer/
COPY operator/ operator/
RUN for package in trainer operator; do (cd "$package" && hatchling build --target wheel --directory /wheel) || exit; done \
 && uv pip install --prefix /package --no-index --no-deps --compile-bytecode /wheel/*.whl

FROM ${BASE_IMAGE} AS operator
COPY --from=operator-dependencies /opt/trainjob /opt/trainjob
COPY --from=operator-package /package /opt/trainjob
# HOME and USER: the user has no entry in /etc/passwd, and /tmp is what a pod with a read-only root makes writable.
ENV PATH=/opt/trainjob/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    USER=trainjob
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="trainjob operator" \
      org.opencontainers.image.description="The controller of TrainJob: distributed TensorFlow on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 65532:65532
ENTRYPOINT ["trainjob"]
CMD ["controller"]

# --- trainer ----------------------------------------------------------------------------------------------------------
FROM build AS trainer-dependencies
# cpu or gpu (with CUDA): the extras of trainer/pyproject.toml.
ARG TENSORFLOW=cpu
# With pip, for images built on this one. TensorFlow's C++ headers (287 MB) and libclang (62 MB, which nothing imports)
# are for compiling operations of your own, which wants a compiler anyway.
# lib/python3 is a name without the minor version, for PYTHONPATH below.
RUN python3 -m venv /opt/trainjob \
 && ln -s "$(basename /opt/trainjob/lib/python3.*)" /opt/trainjob/lib/python3 \
 && uv export --frozen --quiet --no-dev --no-emit-workspace --package trainjob-trainer --extra "${TENSORFLOW}" \
      --extra bucket -o requirements.txt \
 && uv pip install --require-hashes --only-binary :all: --compile-bytecode -r requirements.txt \
 && uv pip freeze --exclude pip --exclude setuptools > /opt/trainjob/constraints.txt \
 && rm -r /opt/trainjob/lib/python3/site-packages/tensorflow/include \
          /opt/trainjob/lib/python3/site-packages/clang/native \
 && rm -f /opt/trainjob/.lock

FROM trainer-dependencies AS trainer-package
COPY trainer/ trainer/
RUN cd trainer && hatchling build --target wheel --directory /wheel \
 && uv pip install --prefix /package --no-index --no-deps --compile-bytecode /wheel/*.whl

FROM ${BASE_IMAGE} AS trainer
# Base images bring their standard library without bytecode: a quarter of the time that importing TensorFlow takes.
RUN install --directory --owner 65532 --group 65532 /workspace \
 && python3 -m compileall -q -x '/(site-packages|test|tests|idlelib|lib2to3)/' \
    "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
COPY --from=trainer-dependencies /opt/trainjob /opt/trainjob
COPY --from=trainer-package /package /opt/trainjob
# PYTHONPATH is how an unmodified Keras script is helped; keep it in front when you add to it.
# NVIDIA_VISIBLE_DEVICES stays unset: a pod gets the GPUs that it asks for, not all of the node's.
ENV PATH=/opt/trainjob/bin:$PATH \
    PYTHONPATH=/opt/trainjob/lib/python3/site-packages/trainjob_trainer/bootstrap \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    USER=trainjob \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="trainjob trainer" \
      org.opencontainers.image.description="TensorFlow, Keras and the trainer library of TrainJob" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
WORKDIR /workspace
USER 65532:65532
CMD ["python"]
