# mmfw in a container; docs/container.md says how to build and run it.
# The base has apt, and its Python is one of 3.10 to 3.13.
ARG BASE=docker.io/library/debian:bookworm-slim

FROM ${BASE} AS python
# hadolint ignore=DL3008 # Debian removes a version when there is a newer one
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/*

FROM python AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/mmfw
ENV PATH=/opt/mmfw/bin:$PATH
WORKDIR /src
# PyTorch comes first, so that a change of mmfw does not download it again.
COPY constraints.txt ./
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir -c constraints.txt --extra-index-url "$TORCH_INDEX" torch torchvision
COPY . ./
ARG EXTRAS=train
RUN pip install --no-cache-dir -c constraints.txt ".[$EXTRAS]" \
    && mmfw setup

FROM python
COPY --from=build /opt/mmfw /opt/mmfw
ARG UID=1000
# Whoever --user names may write there, and has no home elsewhere.
RUN useradd --no-log-init --non-unique --uid "$UID" --home-dir /cache mmfw \
    && install --directory --owner=mmfw --group=mmfw --mode=1777 /data /save /cache /work
ENV PATH=/opt/mmfw/bin:$PATH \
    MMF_DATA_DIR=/data \
    MMF_SAVE_DIR=/save \
    HOME=/cache \
    XDG_CACHE_HOME=/cache
USER $UID
WORKDIR /work
VOLUME ["/data", "/save", "/cache"]
ENTRYPOINT ["mmfw"]
CMD ["--help"]
