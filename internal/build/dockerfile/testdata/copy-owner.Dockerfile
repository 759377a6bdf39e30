FROM debian:12
ARG WHO=app
COPY --chown=$WHO:staff --chmod=755 main.go /x
COPY --chown=1000 --chmod=u=rwX,go=rX src /y/
