#!/bin/sh
# Regenerates the Go code of the .proto files beside this script. Needs protoc (Debian:
# protobuf-compiler libprotobuf-dev).
set -eu
cd "$(dirname "$0")"
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
GOBIN=$bin go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
GOBIN=$bin go install connectrpc.com/connect/cmd/protoc-gen-connect-go@v1.21.1
module=github.com/forkd/forkd/internal/proto/envdproto
PATH=$bin:$PATH protoc -I. \
	--go_out=. --go_opt=module=$module \
	--connect-go_out=. --connect-go_opt=module=$module \
	process.proto filesystem.proto
