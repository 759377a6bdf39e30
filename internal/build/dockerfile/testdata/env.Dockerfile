FROM python:3.12
ENV PATH=/opt/bin:$PATH A=1 B="two words"
ENV C=${A}c D=${UNSET:-default} E=${A:+set}
ENV OLD value of the old form
RUN env
