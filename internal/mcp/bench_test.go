package mcp_test

import (
	"testing"

	"github.com/forkd/forkd/internal/mcp"
)

// A server is made for every subscription over HTTP; other messages share one.
func BenchmarkServer(b *testing.B) {
	c := mcp.New("test")
	b.ReportAllocs()
	for b.Loop() {
		c.Shared(mcp.Admin)
	}
}
