FROM debian:12
WORKDIR /app
COPY go.mod go.mod
COPY go.mod main.go ./
COPY src /src
COPY src/*.py /py/
COPY link dir/
COPY ["with space.txt", "/a b"]
