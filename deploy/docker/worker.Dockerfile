# The inference worker, for the CPU. Build from the root of the source tree:
#   docker build -f deploy/docker/worker.Dockerfile -t tandem-worker .
# For NVIDIA GPUs choose a CUDA build of torch:
#   docker build -f deploy/docker/worker.Dockerfile -t tandem-worker:cuda \
#     --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 --build-arg PACKAGES="gcc libc6-dev" .
ARG BASE=python:3.12-slim-bookworm

# The package, its C compiled: the same steps as in tokenizer.Dockerfile, so that whoever builds both images compiles once.
FROM ${BASE} AS wheel
# A C compiler makes the quick matrix products of half-precision and quantized weights on CPUs; empty: they are slow.
ARG BUILD_PACKAGES="gcc libc6-dev"
RUN if [ -n "$BUILD_PACKAGES" ]; then \
      apt-get update && apt-get install -y --no-install-recommends $BUILD_PACKAGES && rm -rf /var/lib/apt/lists/*; \
    fi
WORKDIR /build
COPY deploy/docker/locks/build.txt ./
RUN python3 -m venv --without-pip /opt/build \
 && python3 -m pip --python /opt/build/bin/python install --no-cache-dir --require-hashes --only-binary :all: -r build.txt
COPY . .
RUN TANDEM_WHEEL=${BUILD_PACKAGES:+compiled} python3 -m pip --python /opt/build/bin/python wheel --no-cache-dir --no-deps \
      --no-build-isolation --wheel-dir /wheel .

FROM ${BASE} AS build
WORKDIR /build
RUN python3 -m venv --without-pip /opt/tandem
# Where torch's wheels come from, besides the package index; empty: the package index alone.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# Dependencies first: this layer, torch in it, stays when only the sources change. Only what the lock has a hash of (lock.py),
# and torch of the index above at the version of constraints.txt, with what only that build of it needs.
# Compiled on all cores, which pip does not: the root filesystem is read-only later on.
COPY constraints.txt deploy/docker/locks/worker.txt ./
RUN python3 -m pip --python /opt/tandem/bin/python install --no-cache-dir --no-compile --require-hashes \
      --only-binary :all: -r worker.txt \
 && python3 -m pip --python /opt/tandem/bin/python install --no-cache-dir --no-compile --only-binary :all: \
      -c constraints.txt torch ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
 && (/opt/tandem/bin/python -m compileall -q -j 0 /opt/tandem/lib || echo "not every module was compiled")
COPY --from=wheel /wheel /wheel
RUN python3 -m pip --python /opt/tandem/bin/python install --no-cache-dir --no-index --no-deps /wheel/*.whl \
 && python3 -m pip --python /opt/tandem/bin/python check \
 && /opt/tandem/bin/python -c "import tandem.worker.front.server, tandem.common.healthcheck"

FROM ${BASE}
ARG VERSION=dev
ARG REVISION=
LABEL org.opencontainers.image.title="tandem-worker" \
      org.opencontainers.image.description="Tandem's inference worker" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Debian packages that are needed at run time: a C compiler on GPUs, where Triton builds what launches its kernels.
ARG PACKAGES=
RUN if [ -n "$PACKAGES" ]; then \
      apt-get update && apt-get install -y --no-install-recommends $PACKAGES && rm -rf /var/lib/apt/lists/*; \
    fi
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tandem
COPY --from=build /opt/tandem /opt/tandem
COPY deploy/docker/health /usr/local/bin/health
ENV PATH=/opt/tandem/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TANDEM_WORKER_HOST=0.0.0.0 \
    TANDEM_WORKER_PORT=50052 \
    TANDEM_WORKER_METRICS_HOST=0.0.0.0 \
    TANDEM_WORKER_METRICS_PORT=9402 \
    TANDEM_WORKER_LOG_FORMAT=json
USER 10001:10001
WORKDIR /tmp
EXPOSE 50052 9402
# Loading a large checkpoint takes minutes: the start period is long, and readiness is what is asked for.
HEALTHCHECK --interval=10s --timeout=5s --start-period=600s --retries=3 \
    CMD ["health", "9402"]
ENTRYPOINT ["python", "-m", "tandem.worker"]
