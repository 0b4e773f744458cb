# `aftermath-solana` and `aftermath-centralized` in an image, as whoever is no root: a member, an owner's commands, a
# local network, the observer. docs/operations.md says how to run a member in one; compose.yaml is a whole run.
#
#   docker build -t aftermath .                                      for a CPU
#   docker build -t aftermath:cuda --build-arg VARIANT=cuda .        for GPUs: docker run --gpus all
#
# No key is in the image, its layers or its environment: keys are files that are mounted.

ARG PYTHON=3.12
# The image that both stages begin with: any with `python` and `venv` of a supported version.
ARG BASE=python:${PYTHON}-slim-bookworm

FROM ${BASE} AS build
# cpu or cuda: which PyTorch. The one of PyPI brings CUDA's libraries; that without them is on PyTorch's own index.
ARG VARIANT=cpu
ARG CPU_INDEX=https://download.pytorch.org/whl/cpu
# Extras of pyproject.toml, with commas between them.
ARG EXTRAS=fast
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/aftermath
# First what seldom changes and is large.
RUN if [ "$VARIANT" = cpu ]; then set -- --index-url "$CPU_INDEX"; fi; /opt/aftermath/bin/pip install "$@" "torch>=2.8"
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY config config
COPY docs docs
COPY client client
RUN /opt/aftermath/bin/pip install ".[$EXTRAS]"

FROM ${BASE}
ARG VARIANT=cpu
# On a GPU, PyTorch and Triton compile what they run there, and call a C compiler for a part of it.
# hadolint ignore=DL3008
RUN if [ "$VARIANT" = cuda ]; then apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; fi
# Everything that is kept is in its home: checkpoints, events, what the optimizer knows, compiled kernels.
RUN useradd --uid 10001 --user-group --create-home --home-dir /var/lib/aftermath aftermath && install -d -o aftermath -g aftermath -m 700 /keys
COPY --from=build /opt/aftermath /opt/aftermath
ENV PATH=/opt/aftermath/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 METRICS_PORT=9100
USER 10001:10001
WORKDIR /var/lib/aftermath
VOLUME /var/lib/aftermath
# As Ctrl-C: a member leaves the run on chain, and needs two seconds for it.
STOPSIGNAL SIGINT
# Of a member, which serves its metrics at METRICS_PORT; half a minute or more may go by before, for kernels.
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s CMD ["python", "-c", "import os, urllib.request as web; web.urlopen('http://127.0.0.1:' + os.environ['METRICS_PORT'] + '/metrics', timeout=5)"]
ENTRYPOINT ["aftermath-solana"]
CMD ["--help"]
