FROM debian:12
RUN --network=none make test
RUN --network=default make get
