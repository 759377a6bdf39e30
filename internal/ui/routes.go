package ui

import (
	"net/http"
	"strings"
)

// routes lists the routes of the REST API that the page may call. Routes that forward requests to a
// server in a guest must never be here, because the answer would have the origin of the view.
var routes = []string{
	"GET /version",
	"GET /readyz",
	"GET /v1/events",
	"GET /v1/snapshots",
	"GET /v1/snapshots/{tag}/info",
	"DELETE /v1/snapshots/{tag}",
	"POST /v1/diff",
	"POST /v1/forks",
	"GET /v1/sandboxes",
	"GET /v1/sandboxes/{id}",
	"DELETE /v1/sandboxes/{id}",
	"GET /v1/sandboxes/{id}/processes",
	"GET /v1/sandboxes/{id}/processes/{pid}/attach",
	"POST /v1/sandboxes/{id}/processes/{pid}/signal",
	"POST /v1/sandboxes/{id}/exec",
	"POST /v1/sandboxes/{id}/code",
	"PATCH /v1/sandboxes/{id}/labels",
	"GET /v1/sandboxes/{id}/stats",
	"GET /v1/sandboxes/{id}/written",
	"GET /v1/sandboxes/{id}/metrics",
	"GET /v1/sandboxes/{id}/network",
	"PUT /v1/sandboxes/{id}/network",
	"GET /v1/host/metrics",
	"GET /v1/sandboxes/{id}/logs",
	"GET /v1/sandboxes/{id}/files",
	"PUT /v1/sandboxes/{id}/files",
	"GET /v1/sandboxes/{id}/files/list",
	"POST /v1/sandboxes/{id}/ports/{port}/url",
	"POST /v1/sandboxes/{id}/try",
	"POST /v1/sandboxes/{id}/branch",
	"POST /v1/sandboxes/{id}/rollback",
	"POST /v1/sandboxes/{id}/promote",
	"POST /v1/sandboxes/{id}/pause",
	"POST /v1/sandboxes/{id}/resume",
	"POST /v1/sandboxes/{id}/suspend",
}

// routed reports whether the page may send r to the daemon. Parts of a path in braces stand for any
// text without a slash.
func routed(r *http.Request) bool {
	for _, route := range routes {
		method, path, _ := strings.Cut(route, " ")
		if method == r.Method && matches(strings.Split(path, "/"), strings.Split(r.URL.Path, "/")) {
			return true
		}
	}
	return false
}

func matches(pattern, path []string) bool {
	if len(pattern) != len(path) {
		return false
	}
	for i, part := range pattern {
		wild := strings.HasPrefix(part, "{")
		if !wild && part != path[i] || wild && (path[i] == "" || path[i] == "." || path[i] == "..") {
			return false
		}
	}
	return true
}
