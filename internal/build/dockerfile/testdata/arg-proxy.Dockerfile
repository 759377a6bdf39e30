# test: arg HTTP_PROXY=http://proxy:3128
FROM debian:12
RUN curl example.com
