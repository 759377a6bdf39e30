FROM debian:12
RUN ["/bin/echo", "a  b", "$HOME"]
