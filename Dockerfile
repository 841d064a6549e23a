# docker build --target cpu  --tag sgl-dspark:0.1.0-cpu  .     the demo on CPUs; any pair with further flags
# docker build --target cuda --tag sgl-dspark:0.1.0-cuda .     on SGLang's own image
#
# deploy/check_image_steps.py runs every step of the cpu stage in a plain Debian without a container engine.
# For builds that repeat exactly, give base images by digest: --build-arg DEBIAN=debian@sha256:...
ARG DEBIAN=debian:12.11-slim
ARG SGLANG_IMAGE=lmsysorg/sglang:v0.5.23

FROM ${DEBIAN} AS build
# Debian drops old versions from its archive, so that pinning them breaks builds; the base image says which release it is.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/venv/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN python3 -m venv /opt/venv
COPY constraints.txt pyproject.toml deploy/docker/requirements.py ./
RUN python3 requirements.py pyproject.toml > requirements.txt
# An index of CPU builds of torch makes the image about 5 GB smaller; without it the pinned torch brings CUDA along.
ARG TORCH_INDEX=
# Every pinned package has a wheel; nothing is compiled.
RUN pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} --constraint constraints.txt --requirement requirements.txt
COPY . .
RUN pip wheel --no-deps --wheel-dir /wheels .

FROM build AS demo
RUN pip install --no-deps /wheels/*.whl
RUN dspark prepare --models /opt/sgl-dspark/models \
    && rm -r /opt/sgl-dspark/models/downloads \
    && mv checkpoints/smollm2-135m-dspark /opt/sgl-dspark/draft \
    && chmod -R a+rX /opt/sgl-dspark

FROM ${DEBIAN} AS cpu
LABEL org.opencontainers.image.title="sgl-dspark" \
      org.opencontainers.image.description="DSpark speculative decoding on SGLang, for CPUs, with a demo model" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates libnuma1 python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home --home-dir /var/lib/sgl-dspark sgl-dspark
COPY --from=demo /opt/venv /opt/venv
COPY --from=demo /opt/sgl-dspark /opt/sgl-dspark
COPY deploy/docker/entrypoint.sh deploy/docker/healthcheck.py deploy/docker/smoke.py constraints.txt /opt/sgl-dspark/
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    DSPARK_MODELS=/opt/sgl-dspark/models \
    XDG_CACHE_HOME=/var/lib/sgl-dspark/cache \
    SGL_DSPARK_STATE=/var/lib/sgl-dspark
USER 10001:10001
WORKDIR /var/lib/sgl-dspark
VOLUME /var/lib/sgl-dspark
EXPOSE 30000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=30m --retries=3 \
    CMD ["python3", "/opt/sgl-dspark/healthcheck.py"]
ENTRYPOINT ["/opt/sgl-dspark/entrypoint.sh"]
CMD ["serve", "--host=0.0.0.0", "--speculative-draft-model-path=/opt/sgl-dspark/draft"]

FROM ${SGLANG_IMAGE} AS cuda
LABEL org.opencontainers.image.title="sgl-dspark" \
      org.opencontainers.image.description="DSpark speculative decoding on SGLang, for CUDA; models are mounted" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 0:0
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_BREAK_SYSTEM_PACKAGES=1
# What SGLang's image holds stays as it is; the build fails if that is not the release that the hooks are made for.
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    python3 -m pip list --format=freeze > /tmp/present.txt \
    && grep -x sglang==0.5.23 /tmp/present.txt \
    && python3 -m pip install --constraint /tmp/present.txt "$(echo /wheels/*.whl)[serve]" \
    && rm /tmp/present.txt \
    && useradd --uid 10001 --create-home --home-dir /var/lib/sgl-dspark sgl-dspark
COPY deploy/docker/entrypoint.sh deploy/docker/healthcheck.py deploy/docker/smoke.py /opt/sgl-dspark/
ENV PYTHONDONTWRITEBYTECODE=1 \
    XDG_CACHE_HOME=/var/lib/sgl-dspark/cache \
    SGL_DSPARK_STATE=/var/lib/sgl-dspark \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
WORKDIR /var/lib/sgl-dspark
VOLUME /var/lib/sgl-dspark
EXPOSE 30000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=60m --retries=3 \
    CMD ["python3", "/opt/sgl-dspark/healthcheck.py"]
ENTRYPOINT ["/opt/sgl-dspark/entrypoint.sh"]
CMD ["serve", "--help"]
