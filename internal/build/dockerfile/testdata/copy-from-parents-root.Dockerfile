FROM debian:12 AS a
RUN true
FROM debian:12
COPY --from=a --parents /dir /usr/./lib / /out/
