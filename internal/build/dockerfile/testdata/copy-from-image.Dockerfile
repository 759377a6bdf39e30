FROM debian:12
COPY --from=python:3.12 /usr/local/lib/*.so /usr/local/lib/
