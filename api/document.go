// Package api holds the document of the daemon's REST API, built into the programs that serve or
// check it. The types of its messages are in package v1 below; the document and they are compared
// by the daemon's tests.
package api

import "embed"

// FS has the document as openapi.yaml.
//
//go:embed openapi.yaml
var FS embed.FS
