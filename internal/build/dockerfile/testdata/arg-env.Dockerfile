# test: arg A=arg
FROM debian:12
ARG A
ENV A=env
RUN echo $A
FROM debian:12
ARG A=default
ENV B=$A
RUN echo $A $B
