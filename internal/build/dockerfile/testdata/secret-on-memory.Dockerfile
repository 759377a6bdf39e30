FROM base-memory
RUN --mount=type=secret,id=a true
RUN --mount=type=secret,id=b true
