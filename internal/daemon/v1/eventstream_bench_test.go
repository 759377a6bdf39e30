package v1

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/event"
)

// BenchmarkEventStreams measures the processor time of ten streams over TCP while 100 events a
// second happen, without the time for the events themselves. The clients do not read: if they did,
// the benchmark would measure their time too. The kernel buffers several thousand events for each
// client.
func BenchmarkEventStreams(b *testing.B) {
	const streams = 10
	for _, gather := range []time.Duration{0, 100 * time.Millisecond, 250 * time.Millisecond} {
		b.Run(fmt.Sprintf("gather=%v", gather), func(b *testing.B) {
			var texts eventTexts
			shared := func(id string, e *event.Event) (string, error) {
				return texts.get(textKey{id: id}, func() (string, error) { return eventText(id, e) })
			}
			ring := event.NewRing(event.DefaultSize)
			begun := make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				s := eventStream{events: ringEvents{ring.Follow(""), ring}, text: shared, out: face.NewSSE(w, time.Minute),
					keepalive: time.Minute, gather: gather}
				begun <- struct{}{}
				s.run(r.Context())
			}))
			defer server.Close()
			defer server.CloseClientConnections()
			for range streams {
				conn, err := net.Dial("tcp", server.Listener.Addr().String())
				if err != nil {
					b.Fatal(err)
				}
				defer conn.Close()
				if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: test\r\n\r\n"); err != nil {
					b.Fatal(err)
				}
				<-begun
			}
			took := emitting(b, ring) - emitting(b, event.NewRing(event.DefaultSize))
			b.ReportMetric(float64(took.Microseconds())/float64(b.N*streams), "cpu-µs/event/stream")
		})
	}
}

// emitting emits 100 events a second. It returns the processor time that this process has used.
func emitting(b *testing.B, ring *event.Ring) time.Duration {
	before := processorTime(b)
	for n := range b.N {
		emit(ring, n, n+1, map[string]string{"turn": fmt.Sprint(n)})
		time.Sleep(10 * time.Millisecond)
	}
	return processorTime(b) - before
}

// processorTime returns the processor time that this process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &use); err != nil {
		b.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
