FROM debian:12
RUN apt-get update \
    # a comment between
    && apt-get install -y \
       curl \
       git
