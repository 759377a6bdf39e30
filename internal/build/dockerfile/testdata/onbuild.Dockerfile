FROM triggers:1 AS a
RUN first
ONBUILD COPY go.mod /x/
ONBUILD RUN --mount=type=bind,source=src,target=/b echo $WHO
FROM a AS b
ARG WHO=me
RUN after
FROM b
ONBUILD RUN never
RUN last
