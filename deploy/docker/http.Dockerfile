# The HTTP door. Small: no torch, no tokenizer library. Build from the root of the source tree:
#   docker build -f deploy/docker/http.Dockerfile -t tandem-http .
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build
WORKDIR /build
RUN python3 -m venv --without-pip /opt/tandem && python3 -m venv --without-pip /opt/build
# Dependencies first: this layer stays when only the sources change. Only what the locks have a hash of (lock.py).
# Compiled on all cores, which pip does not: the root filesystem is read-only later on.
COPY deploy/docker/locks/http.txt deploy/docker/locks/build.txt ./
RUN python3 -m pip --python /opt/build/bin/python install --no-cache-dir --require-hashes --only-binary :all: -r build.txt \
 && python3 -m pip --python /opt/tandem/bin/python install --no-cache-dir --no-compile --require-hashes \
      --only-binary :all: -r http.txt \
 && (/opt/tandem/bin/python -m compileall -q -j 0 /opt/tandem/lib || echo "not every module was compiled")
COPY . .
# -P: what is installed, and not the sources that lie here, is tried.
RUN python3 -m pip --python /opt/build/bin/python wheel --no-cache-dir --no-deps \
      --no-build-isolation --wheel-dir /opt/wheel . \
 && python3 -m pip --python /opt/tandem/bin/python install --no-cache-dir --no-index --no-deps /opt/wheel/*.whl \
 && python3 -m pip --python /opt/tandem/bin/python check \
 && /opt/tandem/bin/python -P -c "import tandem.http.server" \
 && ! /opt/tandem/bin/python -P -c "import torch" 2>/dev/null

FROM ${BASE}
ARG VERSION=dev
ARG REVISION=
LABEL org.opencontainers.image.title="tandem-http" \
      org.opencontainers.image.description="Tandem's HTTP door: OpenAI's interface" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tandem
COPY --from=build /opt/tandem /opt/tandem
COPY deploy/docker/health /usr/local/bin/health
ENV PATH=/opt/tandem/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TANDEM_HTTP_HOST=0.0.0.0 \
    TANDEM_HTTP_PORT=8000 \
    TANDEM_HTTP_METRICS_HOST=0.0.0.0 \
    TANDEM_HTTP_METRICS_PORT=9403 \
    TANDEM_HTTP_LOG_FORMAT=json
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000 9403
# On the metrics port, which never speaks TLS.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["health", "9403"]
ENTRYPOINT ["python", "-m", "tandem.http"]
