package inbound

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Data arrives as soon as it is written, in both directions and both versions of HTTP. The answer
// may begin before the request has ended.
func TestHTTPStreamsBothWays(t *testing.T) {
	guest := serve(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		rc.EnableFullDuplex()
		w.Header().Set("Trailer", "Grpc-Status")
		rc.Flush()
		for lines := bufio.NewScanner(r.Body); lines.Scan(); {
			fmt.Fprintln(w, "got", lines.Text())
			rc.Flush()
		}
		w.Header().Set("Grpc-Status", r.Proto)
	})
	for _, c := range []struct {
		name, contentType, guestSpeaks string
		http2                          bool
	}{
		{"HTTP/1.1", "text/plain", "HTTP/1.1", false},
		{"HTTP/2", "text/plain", "HTTP/1.1", true},
		{"gRPC", "application/grpc+proto", "HTTP/2.0", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, guest, Config{}, Route{})
			client := &http.Transport{Protocols: new(http.Protocols)}
			client.Protocols.SetHTTP1(!c.http2)
			client.Protocols.SetUnencryptedHTTP2(c.http2)
			defer client.CloseIdleConnections()
			body, w := io.Pipe()
			req, err := http.NewRequestWithContext(t.Context(), "POST", r.URL, body)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", c.contentType)
			req.Header.Set("Te", "trailers")
			resp, err := client.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			answers := bufio.NewReader(resp.Body)
			for i := range 3 {
				fmt.Fprintln(w, i)
				if line, err := answers.ReadString('\n'); err != nil || line != fmt.Sprintln("got", i) {
					t.Fatalf("%q, %v", line, err)
				}
			}
			w.Close()
			if rest, err := io.ReadAll(answers); err != nil || len(rest) > 0 {
				t.Errorf("%q, %v", rest, err)
			}
			if got := resp.Trailer.Get("Grpc-Status"); got != c.guestSpeaks {
				t.Errorf("the guest's trailer is %q, want %q", got, c.guestSpeaks)
			}
			if err := r.end(t); err != nil {
				t.Error(err)
			}
		})
	}
}

// If a gRPC server fails, it sends status and metadata in the header of an answer without a body.
// Status and metadata reach the client as trailers, where a client of gRPC looks for them.
func TestGRPCAnswerWithoutABody(t *testing.T) {
	guest := serve(t, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "application/grpc")
		h.Set("Grpc-Status", "5")
		h.Set("Grpc-Message", "no such thing")
		h.Set("Hint", "try another")
		for n := range 20 {
			h.Set(fmt.Sprint("Meta-", n), "x")
		}
	})
	for range 20 { // the order of headers is random
		testTrailersOnly(t, guest)
	}
}

func testTrailersOnly(t *testing.T, guest net.Listener) {
	r := start(t, guest, Config{}, Route{})
	client := &http.Transport{Protocols: new(http.Protocols)}
	client.Protocols.SetUnencryptedHTTP2(true)
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), "POST", r.URL, strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	resp, err := client.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if p, err := io.ReadAll(resp.Body); err != nil || len(p) > 0 || resp.Header.Get("Content-Type") != "application/grpc" {
		t.Errorf("%q, %v, header %v", p, err, resp.Header)
	}
	for name, want := range map[string]string{"Grpc-Status": "5", "Grpc-Message": "no such thing", "Hint": "try another",
		"Meta-0": "x", "Meta-19": "x"} {
		if got := resp.Trailer.Get(name); got != want || resp.Header.Get(name) != "" {
			t.Errorf("%s is %q, want %q as a trailer; header %v, trailer %v", name, got, want, resp.Header, resp.Trailer)
		}
	}
}

// summing() reads to the end of the data and answers with the digest of the data.
func summing(conn io.ReadWriter) {
	sum := sha256.New()
	if _, err := io.Copy(sum, conn); err == nil {
		conn.Write(sum.Sum(nil))
	}
}

// An upgraded connection carries bytes in both directions, which end separately. The first bytes
// may arrive together with the request.
func TestUpgradesHaveTwoDirections(t *testing.T) {
	upgrade := listen(t, func(conn *net.TCPConn) {
		r := bufio.NewReader(conn)
		if _, err := http.ReadRequest(r); err != nil {
			t.Error(err)
		}
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		summing(struct {
			io.Reader
			io.Writer
		}{r, conn})
	})
	plain := listen(t, func(conn *net.TCPConn) { summing(conn) })
	for _, c := range []struct {
		path, protocol string
		guest          net.Listener
	}{{"/", "echo", upgrade}, {"/tcp", "tcp", plain}} {
		t.Run(c.protocol, func(t *testing.T) {
			r := start(t, c.guest, Config{}, Route{})
			sent := make([]byte, 3<<20)
			rand.Read(sent)
			conn, answers := r.raw(t,
				"GET "+c.path+" HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: "+c.protocol+"\r\n\r\n"+string(sent[:1000]))
			resp, err := http.ReadResponse(answers, nil)
			if err != nil || resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != c.protocol {
				t.Fatalf("%+v, %v", resp, err)
			}
			if _, err := conn.Write(sent[1000:]); err != nil {
				t.Fatal(err)
			}
			conn.CloseWrite()
			got, err := io.ReadAll(answers)
			if want := sha256.Sum256(sent); err != nil || string(got) != string(want[:]) {
				t.Errorf("answered %x, %v", got, err)
			}
			if err := r.end(t); err != nil {
				t.Error(err)
			}
		})
	}
}

// A stream ends when one side closes its connection, even if the other side only waits. A side that
// has only finished sending still receives data.
func TestStreamsEndWithOneSide(t *testing.T) {
	for name, c := range map[string]struct {
		guest  func(conn *net.UnixConn, heard, ended chan string)
		client func(conn *net.TCPConn, heard chan string)
	}{
		"the guest has closed": {
			func(*net.UnixConn, chan string, chan string) {},
			func(*net.TCPConn, chan string) {},
		},
		"the guest has sent all": {
			func(conn *net.UnixConn, heard, _ chan string) {
				conn.CloseWrite()
				text, _ := io.ReadAll(conn)
				heard <- string(text)
			},
			func(conn *net.TCPConn, heard chan string) {
				io.WriteString(conn, "and you")
				conn.CloseWrite()
				if got := <-heard; got != "and you" {
					t.Errorf("the guest was sent %q", got)
				}
			},
		},
		"the client has gone": {
			func(conn *net.UnixConn, heard, ended chan string) {
				io.Copy(io.Discard, conn)
				heard <- ""
				<-ended
			},
			func(conn *net.TCPConn, heard chan string) {
				conn.CloseWrite()
				<-heard
				conn.SetLinger(0) // makes Close send a reset, like the kernel of a killed program
				conn.Close()
			},
		},
	} {
		for path, protocol := range map[string]string{"/": "echo", "/tcp": "tcp"} {
			t.Run(name+", "+protocol, func(t *testing.T) {
				heard, ended := make(chan string, 1), make(chan string)
				defer close(ended)
				guest := listenUnix(t, func(conn *net.UnixConn) {
					if protocol == "echo" {
						http.ReadRequest(bufio.NewReader(conn))
						io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
					}
					io.WriteString(conn, "bye")
					c.guest(conn, heard, ended)
				})
				r := start(t, guest, Config{Stall: time.Second}, Route{})
				conn, answers := r.raw(t,
					"GET "+path+" HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: "+protocol+"\r\n\r\n")
				resp, err := http.ReadResponse(answers, nil)
				if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
					t.Fatalf("%+v, %v", resp, err)
				}
				var bye [3]byte
				if _, err := io.ReadFull(answers, bye[:]); err != nil || string(bye[:]) != "bye" {
					t.Errorf("%q, %v", bye, err)
				}
				c.client(conn, heard)
				if err := r.end(t); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestTCPWantsAnUpgrade(t *testing.T) {
	r := start(t, listen(t, func(*net.TCPConn) { t.Error("the guest is connected to") }), Config{}, Route{})
	for _, head := range []string{"", "Upgrade: tcp\r\n", "Connection: Upgrade\r\n",
		"Connection: Upgrade\r\nUpgrade: websocket\r\n",
		"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 3\r\n",
		"Connection: Upgrade\r\nUpgrade: tcp\r\nTransfer-Encoding: chunked\r\n"} {
		_, answers := r.raw(t, "GET /tcp HTTP/1.1\r\nHost: x\r\n"+head+"\r\n")
		resp, err := http.ReadResponse(answers, nil)
		if err != nil || resp.Header.Get("Upgrade") != "tcp" || !errors.Is(r.end(t), ErrUpgrade) {
			t.Errorf("%q: %+v, %v", head, resp, err)
		}
	}
}

// A stream ends with its context, which ends when the sandbox ends.
func TestStreamsEndWithTheirContext(t *testing.T) {
	begun := make(chan struct{}, 1)
	guest := listen(t, func(conn *net.TCPConn) {
		begun <- struct{}{}
		io.Copy(io.Discard, conn)
	})
	for _, head := range []string{"GET /tcp HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n", "GET / HTTP/1.1\r\n",
		"POST / HTTP/1.1\r\nContent-Length: 5\r\n"} {
		r := start(t, guest, Config{}, Route{})
		ctx, cancel := context.WithCancelCause(context.Background())
		inner := r.Config.Handler
		r.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			inner.ServeHTTP(w, req.WithContext(ctx))
		})
		r.raw(t, head+"Host: x\r\n\r\n")
		<-begun
		cancel(io.ErrNoProgress)
		if err := r.end(t); err == nil {
			t.Errorf("%q: the stream ended well", head)
		}
	}
}

// A client that does not read slows the guest down. The guest's data is not collected in memory,
// and after a time limit the client is disconnected.
func TestASlowReaderTakesNoMemory(t *testing.T) {
	const streams = 8
	for path, head := range map[string]string{"/": "HTTP/1.1 200 OK\r\n\r\n", "/tcp": ""} {
		blocked := make(chan int, streams)
		guest := listen(t, func(conn *net.TCPConn) {
			io.WriteString(conn, head)
			sent, part := 0, make([]byte, 64<<10)
			for {
				conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
				n, err := conn.Write(part)
				if sent += n; err != nil {
					break
				}
			}
			blocked <- sent
			conn.SetWriteDeadline(time.Time{})
			io.Copy(io.Discard, conn) // returns when the proxy closes the connection
		})
		r := start(t, guest, Config{Stall: 3 * time.Second}, Route{})
		before := heap()
		for range streams {
			conn, _ := r.raw(t, "GET "+path+" HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
			conn.SetReadBuffer(4 << 10)
		}
		total := 0
		for range streams {
			total += <-blocked
		}
		if grown := heap() - before; grown > streams*256<<10 {
			t.Errorf("%s: %d streams that nobody reads take %d KiB, after %d KiB were sent", path, streams, grown>>10, total>>10)
		}
		for range streams {
			if r.end(t) == nil {
				t.Errorf("%s: the stream ended well", path)
			}
		}
	}
}

// heap returns the number of bytes allocated on the heap.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Headers beyond the server's limit do not reach the guest. Smaller headers reach the guest.
func TestLargeHeaders(t *testing.T) {
	guest := serve(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, len(r.Header.Get("X-Large"))) })
	r := start(t, guest, Config{}, Route{})
	r.Config.MaxHeaderBytes = 16 << 10 // the daemon's limit; the server reads this field at its first connection
	for size, want := range map[int]int{14 << 10: http.StatusOK, 24 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		_, answers := r.raw(t, "GET / HTTP/1.1\r\nHost: x\r\nX-Large: "+strings.Repeat("x", size)+"\r\n\r\n")
		resp, err := http.ReadResponse(answers, nil)
		if err != nil || resp.StatusCode != want {
			t.Errorf("%d bytes: %+v, %v", size, resp, err)
		}
	}
}
