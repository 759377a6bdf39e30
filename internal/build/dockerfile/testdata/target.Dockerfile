# test: target build
FROM golang:1.26 AS build
RUN go build
FROM debian:12 AS final
COPY --from=build /a /b/
