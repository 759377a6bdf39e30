# Only triggers of images get no secrets.
FROM triggers:1 AS a
RUN --mount=type=secret,id=x first
ONBUILD RUN --mount=type=secret,id=x second
FROM a
