FROM debian:12
RUN echo a
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN echo b | cat
