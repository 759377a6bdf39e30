package mcphttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/daemon/auth"
)

// over(h) returns a client whose requests are answered by h in this process. The requests belong to
// a message with a token.
func over(h http.HandlerFunc) *http.Client { return overWith(h, slog.New(slog.DiscardHandler)) }

func overWith(h http.HandlerFunc, log *slog.Logger) *http.Client {
	message := httptest.NewRequest(http.MethodPost, "/mcp", nil)
	message.Header.Set("Authorization", "Bearer t")
	message.Header.Set("Forkd-Token", "f")
	message.Header.Set("Cookie", "c=1")
	message.RemoteAddr, message.Host = "192.0.2.1:5", "forkd.example.org"
	return &http.Client{
		Transport: newTransport(h, message.WithContext(auth.With(message.Context(), auth.Principal{Who: "token:x"})),
			log),
	}
}

func get(t *testing.T, c *http.Client, ctx context.Context) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://forkd/v1/things?a=b", nil)
	if err != nil {
		t.Fatal(err)
	}
	return c.Do(r)
}

// A request of a tool reaches the handler as a request of the message's client, with the
// credentials of the message and no others.
func TestCallsAreTheClients(t *testing.T) {
	c := over(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer t" || r.Header.Get(auth.TokenHeader) != "f" ||
			r.Header.Get("Cookie") != "" ||
			r.RemoteAddr != "192.0.2.1:5" || r.Host != "forkd.example.org" || r.RequestURI != "/v1/things?a=b" ||
			r.URL.Host != "" {
			t.Errorf("%+v", r)
		}
		w.Header().Set("X-Answer", "yes")
		w.WriteHeader(http.StatusTeapot)
		w.Header().Set("X-Late", "no")
		io.WriteString(w, "body")
	})
	resp, err := get(t, c, t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(resp.Body)
	if err != nil || string(p) != "body" || resp.StatusCode != http.StatusTeapot || resp.Header.Get("X-Answer") != "yes" ||
		resp.Header.Get("X-Late") != "" {
		t.Errorf("%d %q %v, %v", resp.StatusCode, p, resp.Header, err)
	}
}

// isTelling reports whether a text contains the value or the location of a panic.
func isTelling(text string) bool {
	return strings.Contains(text, "boom") || strings.Contains(text, ".go:")
}

// If a handler panics or aborts, only its own answer is cut off.
func TestPanics(t *testing.T) {
	for _, c := range []struct {
		what  any
		tells bool // the log must describe the panic
	}{{http.ErrAbortHandler, false}, {errors.New("boom"), true}, {"boom", true}} {
		what, tells := c.what, c.tells
		var log strings.Builder
		c := overWith(func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "begun")
			panic(what)
		}, slog.New(slog.NewTextHandler(&log, nil)))
		resp, err := get(t, c, t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if p, err := io.ReadAll(resp.Body); err == nil || string(p) != "begun" || isTelling(err.Error()) {
			t.Errorf("%v: %q, %v", what, p, err)
		}
		resp.Body.Close()
		if logged := isTelling(log.String()); logged != tells {
			t.Errorf("%v: the log has %s", what, log.String())
		}
	}
	// An error can still be sent if the answer has not begun.
	resp, err := get(t, over(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Answer", "half")
		panic("boom")
	}), t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusInternalServerError || resp.Header.Get("X-Answer") != "" ||
		!strings.Contains(string(p), `"code":"internal"`) || isTelling(string(p)) {
		t.Errorf("%d %v %s, %v", resp.StatusCode, resp.Header, p, err)
	}
	resp, err = get(t, over(func(http.ResponseWriter, *http.Request) {}), t.Context())
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("a handler that does nothing: %+v, %v", resp, err)
	}
}

// The reader receives parts of a stream as they are written. The handler ends when the reader
// closes the body or cancels the context, whether or not the answer has begun.
func TestStreams(t *testing.T) {
	ended := make(chan error, 1)
	endless := over(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if err := errors.Join(rc.SetWriteDeadline(time.Now()), rc.SetReadDeadline(time.Now())); err != nil {
			t.Error(err)
		}
		for i := 0; ; i++ {
			if _, err := fmt.Fprintf(w, "%d\n", i); err != nil {
				ended <- err
				return
			}
			if err := rc.Flush(); err != nil {
				t.Error(err)
			}
		}
	})
	resp, err := get(t, endless, t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 4)
	if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != "0\n1\n" {
		t.Errorf("%q, %v", first, err)
	}
	resp.Body.Close()
	if err := <-ended; !strings.Contains(err.Error(), "gone") {
		t.Errorf("the handler is told %v", err)
	}
	waits := over(func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		ended <- context.Cause(r.Context())
	})
	ctx, cancel := context.WithCancel(t.Context())
	go cancel()
	if resp, err := get(t, waits, ctx); err == nil {
		resp.Body.Close()
		t.Error("answered")
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
