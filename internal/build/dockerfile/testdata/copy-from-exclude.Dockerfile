FROM golang:1.26 AS build
FROM debian:12
COPY --from=build --exclude=*.go --exclude=!keep.go /src /x
