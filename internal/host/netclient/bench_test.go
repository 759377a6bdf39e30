package netclient

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkJoin measures how much time the network adds to a fork, for each child.
func BenchmarkJoin(b *testing.B) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	c, err := New(Config{Bin: self, Dir: filepath.Join(b.TempDir(), "net"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	for i := 0; b.Loop(); i++ {
		var g guest
		l, err := c.Join(fmt.Sprint(i), Default(), &g, nil)
		if err != nil {
			b.Fatal(err)
		}
		g.waiting.Close()
		l.Ready()
		b.StopTimer()
		l.Close()
		b.StartTimer()
	}
}
