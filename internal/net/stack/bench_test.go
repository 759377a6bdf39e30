package stack

import (
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/net/guesttest"
	"github.com/forkd/forkd/internal/net/nettest"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// The guest in these benchmarks is a gVisor stack in the same process. This guest takes half of the
// time. So results of these benchmarks can be compared only with each other.

func BenchmarkDownload(b *testing.B) {
	w := newWorld(b)
	nettest.Serve(w.Listen(b, web+":80"), func(c net.Conn) {
		for chunk := make([]byte, 256<<10); ; {
			if _, err := c.Write(chunk); err != nil {
				return
			}
		}
	})
	c := newRig(b, w, "public").mustDial(b, web+":80")
	buf := make([]byte, 256<<10)
	b.SetBytes(1 << 20)
	for b.Loop() {
		for n := 0; n < 1<<20; {
			m, err := c.Read(buf[:min(len(buf), 1<<20-n)])
			if err != nil {
				b.Fatal(err)
			}
			n += m
		}
	}
}

// BenchmarkDownloadFar downloads from a distant server, with buffers of a fixed size and with
// buffers that Linux enlarges.
func BenchmarkDownloadFar(b *testing.B) {
	const far = "93.184.216.77"
	for _, size := range []struct {
		name    string
		receive int64
	}{{"fixed", 0}, {"enlarged", LargestReceive()}} {
		b.Run(size.name, func(b *testing.B) {
			w := newWorld(b)
			w.Far(b, far, 25*time.Millisecond)
			nettest.Serve(w.Listen(b, far+":80"), func(c net.Conn) { _, _ = io.Copy(c, zeros{}) })
			h := NewHost(10000)
			h.SetMemory(8 << 30)
			h.SetReceive(size.receive)
			c := addRig(b, w, h, "public", netproto.Limits{}).mustDial(b, far+":80")
			if _, err := io.CopyN(io.Discard, c, 8<<20); err != nil { // wait until the windows have grown
				b.Fatal(err)
			}
			b.SetBytes(1 << 20)
			for b.Loop() {
				if _, err := io.CopyN(io.Discard, c, 1<<20); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDownloadMany downloads on 128 connections at the same time.
func BenchmarkDownloadMany(b *testing.B) {
	w := newWorld(b)
	nettest.Serve(w.Listen(b, web+":80"), func(c net.Conn) { _, _ = io.Copy(c, zeros{}) })
	r := newRig(b, w, "public")
	got := make(chan int, 1000)
	for range 128 {
		c := r.mustDial(b, web+":80")
		go func() {
			for buf := make([]byte, 64<<10); ; {
				n, err := c.Read(buf)
				if err != nil {
					return
				}
				select {
				case got <- n:
				case <-b.Context().Done():
					return
				}
			}
		}()
	}
	b.SetBytes(1 << 20)
	for b.Loop() {
		for n := 0; n < 1<<20; {
			n += <-got
		}
	}
}

func BenchmarkUpload(b *testing.B) {
	w := newWorld(b)
	nettest.Serve(w.Listen(b, web+":80"), func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	c := newRig(b, w, "public").mustDial(b, web+":80")
	buf := make([]byte, 1<<20)
	b.SetBytes(1 << 20)
	for b.Loop() {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	w := newWorld(b)
	nettest.Serve(w.Listen(b, web+":80"), echo)
	c := newRig(b, w, "public").mustDial(b, web+":80")
	p := make([]byte, 64)
	for b.Loop() {
		if _, err := c.Write(p); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, p); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkConnect(b *testing.B) {
	w := newWorld(b)
	nettest.Serve(w.Listen(b, web+":80"), func(c net.Conn) { _ = c.Close() })
	r := newRig(b, w, "public")
	for b.Loop() {
		c, err := r.dial(b, web+":80")
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.ReadAll(c)
		_ = c.Close()
	}
}

// BenchmarkIdleStack measures the memory of a stack whose guest has sent one packet.
func BenchmarkIdleStack(b *testing.B) {
	h := NewHost(1000)
	before, stacks := heap(), runtime.NumGoroutine()
	n := 0
	for b.Loop() {
		n++
		mine, theirs := guesttest.Pair(b)
		defer mine.Close()
		s, err := New(h, theirs, &netproto.Attach{ID: "sb", Policy: netproto.Public()}, &Counters{})
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
		if _, err := mine.Write(guesttest.Frame(guesttest.SYN(frame.Guest, private, 1024, 80))); err != nil {
			b.Fatal(err)
		}
		if _, err := mine.Read(make([]byte, 2000)); err != nil { // fails when the connection is reset
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(heap()-before)/float64(n), "heap-B/stack")
	b.ReportMetric(float64(runtime.NumGoroutine()-stacks)/float64(n), "goroutines/stack")
}
