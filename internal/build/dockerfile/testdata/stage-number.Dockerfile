FROM golang:1.26
RUN go build
FROM debian:12
COPY --from=0 /a /b/
