FROM debian:12
ENV A=hello
ENV A=bye B=$A
RUN echo $B
