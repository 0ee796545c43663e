# One image for every role: docker build -t fileq:0.1.0 . && docker run --rm -v "$PWD/inbox:/data" fileq:0.1.0 all
# Put your handlers into an image on top of it: docs/deploying-handlers.md
ARG PYTHON=3.11.15-slim-bookworm@sha256:b18992999dbe963a45a8a4da40ac2b1975be1a776d939d098c647482bcad5cba

FROM python:${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# Dependencies change rarely: they have their own layer, so a change of the code does not install them again.
COPY pyproject.toml constraints.txt ./
RUN python -m venv /opt/fileq \
    && cp constraints.txt /opt/fileq/constraints.txt \
    && python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > requirements.txt \
    && /opt/fileq/bin/python -m pip install -c constraints.txt -r requirements.txt \
    && python -m pip install -c constraints.txt setuptools
COPY README.md LICENSE ./
COPY fileq fileq
RUN python -m pip wheel --no-build-isolation --no-deps --wheel-dir /src/wheels . \
    && /opt/fileq/bin/python -m pip install --no-deps --no-index /src/wheels/*.whl

FROM python:${PYTHON}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="fileq" \
      org.opencontainers.image.description="Drop a file into a directory: it is queued once, processed, retried and never lost." \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="MIT"
# /data: the files. /var/lib/fileq: the database of the SQLite broker. /app: your handlers. Only the first two are written
# to, so the root file system can be read-only.
RUN groupadd --gid 10001 fileq \
    && useradd --no-log-init --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin fileq \
    && install -d -o 10001 -g 10001 /data /var/lib/fileq \
    && install -d /app /etc/fileq
COPY --from=build /opt/fileq /opt/fileq
COPY --chmod=644 deploy/image/config.yaml /etc/fileq/config.yaml
ENV PATH=/opt/fileq/bin:$PATH \
    FILEQ_CONFIG=/etc/fileq/config.yaml \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
# A number, because Kubernetes' runAsNonRoot can't check a name.
USER 10001:10001
# Metrics and health; the REST API of `fileq serve`.
EXPOSE 9090 8080
# Liveness, not readiness: a container must not be restarted because the broker is unreachable.
HEALTHCHECK --interval=10s --timeout=3s --start-period=15s --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('FILEQ_OBSERVABILITY_METRICS_PORT') or 9090), timeout=2); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["fileq"]
CMD ["all", "--app-dir", "/app"]
