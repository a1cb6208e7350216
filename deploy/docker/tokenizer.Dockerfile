# The tokenizer service. Small: no torch. Build from the root of the source tree:
#   docker build -f deploy/docker/tokenizer.Dockerfile -t tandem-tokenizer .
ARG BASE=python:3.12-slim-bookworm

# The package, its C compiled: the same steps as in worker.Dockerfile, so that whoever builds both images compiles once.
FROM ${BASE} AS wheel
# A C compiler makes encoding several times as fast; empty: tiktoken and Python do it.
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
# Dependencies first: this layer stays when only the sources change. Only what the lock has a hash of (lock.py).
# Compiled on all cores, which pip does not: the root filesystem is read-only later on.
COPY deploy/docker/locks/tokenizer.txt ./
RUN python3 -m pip --python /opt/tandem/bin/python install --no-cache-dir --no-compile --require-hashes \
      --only-binary :all: -r tokenizer.txt \
 && (/opt/tandem/bin/python -m compileall -q -j 0 /opt/tandem/lib || echo "not every module was compiled")
COPY --from=wheel /wheel /wheel
RUN python3 -m pip --python /opt/tandem/bin/python install --no-cache-dir --no-index --no-deps /wheel/*.whl \
 && python3 -m pip --python /opt/tandem/bin/python check \
 && /opt/tandem/bin/python -c "import tandem.tokenizer.rpc.server, tandem.common.healthcheck" \
 && ! /opt/tandem/bin/python -c "import torch" 2>/dev/null

FROM ${BASE}
ARG VERSION=dev
ARG REVISION=
LABEL org.opencontainers.image.title="tandem-tokenizer" \
      org.opencontainers.image.description="Tandem's tokenizer service" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tandem
COPY --from=build /opt/tandem /opt/tandem
COPY deploy/docker/health /usr/local/bin/health
ENV PATH=/opt/tandem/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TANDEM_TOKENIZER_HOST=0.0.0.0 \
    TANDEM_TOKENIZER_PORT=50051 \
    TANDEM_TOKENIZER_METRICS_HOST=0.0.0.0 \
    TANDEM_TOKENIZER_METRICS_PORT=9401 \
    TANDEM_TOKENIZER_LOG_FORMAT=json
USER 10001:10001
WORKDIR /tmp
EXPOSE 50051 9401
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["health", "9401"]
ENTRYPOINT ["python", "-m", "tandem.tokenizer"]
