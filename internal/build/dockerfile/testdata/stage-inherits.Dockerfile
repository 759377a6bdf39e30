FROM debian:12 AS base
ENV A=1
WORKDIR /w
USER app
SHELL ["/bin/bash", "-c"]
FROM base AS left
RUN echo left
FROM base
COPY --from=left /x /y
RUN echo right
