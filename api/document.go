// Package api embeds the document that describes the daemon's REST API, for programs that serve the
// API or check its traffic. The Go types of the API's messages are in package v1. The daemon's
// tests compare these types with the document.
package api

import "embed"

// FS has the document as openapi.yaml.
//
//go:embed openapi.yaml
var FS embed.FS
