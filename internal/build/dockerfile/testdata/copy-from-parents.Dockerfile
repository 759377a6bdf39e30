FROM debian:12 AS a
RUN true
FROM debian:12
COPY --from=a --parents /usr/./lib/x.so /usr/bin/y /out/
