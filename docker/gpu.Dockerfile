# The image of the service `gpu`: the GPU stage with torch for CUDA. Built from the repository's root:
#
#   docker compose --profile gpu build gpu

FROM nvidia/cuda:12.8.1-base-ubuntu24.04
ENV DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /venv
WORKDIR /src
# What is installed from the index changes seldom, so it has a layer of its own. torch's wheels for
# Linux bring CUDA's libraries with them; of the host only the driver is needed.
COPY setup.cfg pyproject.toml README.md LICENSE constraints.tx[t] ./
COPY fleet/__init__.py fleet/
RUN touch constraints.txt && /venv/bin/pip install --quiet --constraint constraints.txt '.[gpu]'
COPY fleet fleet
COPY tokens tokens
COPY producer producer
COPY workers workers
COPY gpu_stage gpu_stage
COPY emulator emulator
RUN /venv/bin/pip install --quiet --no-deps --force-reinstall . \
    && /venv/bin/python -c 'import gpu_stage.extract_command' \
    && groupadd --gid 10001 fleet \
    && useradd --uid 10001 --gid fleet --no-create-home --home-dir /tmp --shell /usr/sbin/nologin fleet
COPY docker/gpu-workers.sh /fleet/docker/
ENV PATH=/venv/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /fleet
USER 10001:10001
CMD ["gpu-stage", "--help"]
