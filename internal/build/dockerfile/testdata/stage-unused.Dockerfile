FROM nowhere:1 AS unused
RUN false
FROM debian:12
RUN true
