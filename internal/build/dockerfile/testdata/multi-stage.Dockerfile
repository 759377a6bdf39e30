# syntax=docker/dockerfile:1.7
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod ./
RUN go mod download
COPY . .
RUN go build -o /out/app .
FROM debian:12
COPY --from=build /out/app /usr/local/bin/
USER app
CMD ["app"]
