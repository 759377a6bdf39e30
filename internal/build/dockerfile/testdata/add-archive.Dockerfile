FROM debian:12
ADD main.go /x/
ADD --chown=app archive.tar.gz /opt/
ADD --unpack=false archive.tar.gz /plain/
