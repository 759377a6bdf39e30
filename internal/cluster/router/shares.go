package router

import (
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/http"
	"strings"

	"github.com/forkd/forkd/internal/gate"
)

// credentials are the headers in which clients send secrets to daemons.
var credentials = []string{"Authorization", "X-Api-Key"}

// clientOf returns a name for the client of a request: a digest of its credentials, or its address
// if it has none. The router cannot verify credentials, so a client can get any number of names
// with invalid ones. But the first daemon that gets a request with invalid credentials refuses it.
func clientOf(req *http.Request) string {
	secret := ""
	for _, name := range credentials {
		secret += strings.Join(req.Header.Values(name), "\n") + "\n"
	}
	if strings.Trim(secret, "\n") == "" {
		return addressOf(req)
	}
	digest := sha256.Sum256([]byte(secret))
	return "credentials " + hex.EncodeToString(digest[:])
}

func addressOf(req *http.Request) string {
	host, _, _ := net.SplitHostPort(req.RemoteAddr)
	return "address " + host
}

// wait waits for a place in g. The place counts both for the client of a request and for the
// client's address. Neither can have all places, so slow readers do not lock other clients out.
// Requests of a client with the same Idempotency-Key take turns: the second request must find the
// node that executes the first request. The error is that of the request's context.
func wait(g *gate.Gate, req *http.Request) (leave func(), err error) {
	_, total := g.Count()
	client, address := clientOf(req), addressOf(req)
	var others []gate.Share
	if client != address {
		others = append(others, gate.Share{Key: address, Most: gate.Fair(total)})
	}
	if key := req.Header.Get("Idempotency-Key"); key != "" {
		others = append(others, gate.Share{Key: client + " key " + key, Most: 1})
	}
	return g.Wait(req.Context(), gate.Share{Key: client, Most: gate.Fair(total)}, others...)
}
