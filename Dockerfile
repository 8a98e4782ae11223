# The image of agent and scheduler: Debian's own Python and what both need, assembled from nothing. The page docs/image.md says why and how.
#
#   docker buildx build --platform linux/amd64,linux/arm64 -t REGISTRY/gpuagent:VERSION .
#
# Both stages of work run on the builder's own architecture; nothing of another one is ever executed.

# The builder's root, by date and by the digest of its index for every architecture. Nothing of it is in the result.
# Not a variable, which Dependabot does not read. For another image: --build-context NAME=docker-image://OTHER.
# hadolint ignore=DL3029 # the builder's architecture, on purpose
FROM --platform=$BUILDPLATFORM debian:bookworm-20261005-slim@sha256:7c7b2c966bc9ee8cedfeef67e0e279108992c77681fa595db4a9d65c06ccc587 AS build
# The state of Debian's archive that all packages come from.
ARG DEBIAN=http://snapshot.debian.org/archive/debian/20261115T000000Z
ARG DEBIAN_SECURITY=http://snapshot.debian.org/archive/debian-security/20261115T000000Z
ARG TARGETARCH
# The time of every file: that of the archive.
ARG SOURCE_DATE_EPOCH=1794700800
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} PIP_CONFIG_FILE=/run/secrets/pip PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY image/debian.sh image/packages.txt image/
RUN image/debian.sh "${TARGETARCH}" /rootfs
COPY requirements-scheduler.lock requirements-build.lock ./
COPY image/dependencies.sh image/
RUN --mount=type=secret,id=pip --mount=type=secret,id=ca image/dependencies.sh "${TARGETARCH}" /rootfs/opt/gpuagent
COPY pyproject.toml README.md LICENSE ./
COPY gpuagent gpuagent
COPY installer installer
COPY scheduler scheduler
COPY image/agent.sh image/sbom.cdx.json image/
RUN image/agent.sh /rootfs

FROM scratch
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gpuagent" \
      org.opencontainers.image.description="Kubernetes GPU agent and scheduler: share, isolate and place NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /rootfs/ /
# Files that change with every commit are in a layer of their own.
COPY --from=build /agent/ /
# The scheduler's numpy has no work for more threads, and OpenBLAS would start one for each core.
ENV PATH=/opt/gpuagent/bin:/usr/bin:/bin:/usr/sbin:/sbin \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    OPENBLAS_NUM_THREADS=1
EXPOSE 9445 9447
# Kubelet's directories belong to root: a DaemonSet that serves GPUs sets runAsUser 0. Everything else needs no root.
USER 65532:65532
ENTRYPOINT ["gpuagent"]
CMD ["run"]
