# The gateway smg, which drives workers that have `gateway` set (docs/fleet.md). Build from the root of the source tree:
#   docker build -f deploy/docker/gateway.Dockerfile -t tandem-gateway .
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build
COPY deploy/docker/locks/gateway.txt ./
RUN python3 -m venv --without-pip /opt/gateway \
 && python3 -m pip --python /opt/gateway/bin/python install --no-cache-dir --require-hashes --only-binary :all: \
      -r gateway.txt

FROM ${BASE}
ARG VERSION=dev
ARG REVISION=
LABEL org.opencontainers.image.title="tandem-gateway" \
      org.opencontainers.image.description="smg, for Tandem's workers" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tandem
COPY --from=build /opt/gateway /opt/gateway
COPY deploy/docker/health /usr/local/bin/health
ENV PATH=/opt/gateway/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000 9404
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["health", "8000", "/readiness"]
ENTRYPOINT ["smg", "launch"]
