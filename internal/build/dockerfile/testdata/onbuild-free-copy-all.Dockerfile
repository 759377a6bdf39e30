FROM debian:12
COPY . /all
COPY / /root-of-context/
COPY ./ .
