package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// One sandbox that takes for ever does not keep others from being suspended, and one that fails neither.
func TestSuspensionsAreSideBySide(t *testing.T) {
	var out bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	others := make(chan struct{}, 3)
	err := eachOf(cmd, &common{}, 2, []string{"stuck", "one", "bad", "two"}, func(id string) (string, error) {
		if id == "stuck" {
			for range cap(others) {
				select {
				case <-others:
				case <-time.After(30 * time.Second):
					return "", errors.New("the others wait")
				}
			}
			return id, nil
		}
		defer func() { others <- struct{}{} }()
		if id == "bad" {
			return "", errors.New("bad is refused")
		}
		return id, nil
	}, func(id string) string { return id + " suspended" }, nil)
	if err == nil || err.Error() != "bad is refused" {
		t.Errorf("got %v", err)
	}
	if text := out.String(); text != "one suspended\ntwo suspended\nstuck suspended\n" {
		t.Errorf("%s", text)
	}
}

// A suspension that takes too long is given up, by the name of its sandbox.
func TestSuspensionsAreBounded(t *testing.T) {
	ends := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "sb-stuck") {
			select {
			case <-ends:
			case <-r.Context().Done():
			}
		}
		_ = json.NewEncoder(w).Encode(client.Sandbox{ID: "sb-good", State: "suspended"})
	}))
	defer s.Close()
	defer close(ends)
	cl, err := client.New(s.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	if i, err := suspendSoon(t.Context(), cl, "sb-good", time.Minute); err != nil || i.State != "suspended" {
		t.Errorf("%+v, %v", i, err)
	}
	_, err = suspendSoon(t.Context(), cl, "sb-stuck", 20*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), `"sb-stuck": not done within 20ms`) {
		t.Errorf("got %v", err)
	}
}
