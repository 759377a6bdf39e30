package mcp_test

import (
	"testing"

	"github.com/forkd/forkd/internal/mcp"
)

// BenchmarkServer makes servers. With HTTP, every subscription has its own server. All other
// messages share one server.
func BenchmarkServer(b *testing.B) {
	c := mcp.New("test")
	b.ReportAllocs()
	for b.Loop() {
		c.Shared(mcp.Admin)
	}
}
