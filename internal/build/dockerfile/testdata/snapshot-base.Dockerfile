FROM base-snapshot
RUN true
