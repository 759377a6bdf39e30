package client

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A build is not asked for with other bytes than those it was given: JSON has no bytes but text.
func TestBuildOfBytes(t *testing.T) {
	c, err := New("http://127.0.0.1:1", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, req := range []BuildRequest{
		{Tag: "x", Dockerfile: "FROM x\nRUN echo \xe9\n"},
		{Tag: "x", Dockerfile: "FROM x\n", Args: map[string]string{"A": "\xe9"}},
	} {
		if _, err := c.Build(t.Context(), req, nil, nil); err == nil || !strings.Contains(err.Error(), "is not UTF-8") {
			t.Errorf("%+v: %v", req, err)
		}
	}
}

// An event without an end is not read into memory, whatever number of short ones comes before it.
func TestBuildOfAHostileDaemon(t *testing.T) {
	var sent int
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		output := `{"output":{"number":1,"line":"` + strings.Repeat("x", 1<<20) + `"}}` + "\n"
		for range 20 { // more than one event may have
			_, _ = io.WriteString(w, output)
		}
		_, _ = io.WriteString(w, `{"error":"`)
		for range 64 {
			n, err := io.WriteString(w, strings.Repeat("x", 1<<20))
			if sent += n; err != nil {
				return
			}
		}
	}))
	c, err := New(srv.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	events := 0
	_, err = c.Build(t.Context(), BuildRequest{Tag: "x", Dockerfile: "FROM x\n"}, nil, func(BuildEvent) error {
		events++
		return nil
	})
	srv.Close() // waits for its handler
	if err == nil || !strings.Contains(err.Error(), "an event of more than 16 MiB") || events != 20 {
		t.Errorf("%d events, %v", events, err)
	}
	if sent > 48<<20 {
		t.Errorf("%d MiB of an event were read", sent>>20)
	}
}
