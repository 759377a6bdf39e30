FROM debian:12
ARG NAME=world
COPY <<EOT /etc/greeting
hello $NAME
EOT
COPY --chmod=755 <<"ONE" <<TWO /bin/
#!/bin/sh
echo $NAME
ONE
two
TWO
