# The extension alone, as CloudNativePG mounts it: docs/poolers_and_clusters.md.

ARG BASE=ghcr.io/cloudnative-pg/postgresql:18-minimal-trixie
FROM $BASE AS build
USER root
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev make postgresql-server-dev-18
COPY . /src
RUN make -C /src install PG_CONFIG=/usr/lib/postgresql/18/bin/pg_config DESTDIR=/image

FROM scratch
COPY --from=build /src/LICENSE /licenses/
COPY --from=build /image/usr/lib/postgresql/18/lib/ /lib/
COPY --from=build /image/usr/share/postgresql/18/extension/ /share/extension/
USER 65532:65532
