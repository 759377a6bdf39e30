package client

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Arguments that are not valid UTF-8 are refused, because JSON would change their bytes.
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

// A wrong request gets an error that names the field, and nothing is sent.
func TestBuildArguments(t *testing.T) {
	c, err := New("http://127.0.0.1:1", "")
	if err != nil {
		t.Fatal(err)
	}
	many := map[string][]byte{}
	for i := range 65 {
		many[strings.Repeat("x", i+1)] = nil
	}
	for _, w := range []struct {
		field string
		req   BuildRequest
	}{
		{"tag", BuildRequest{Dockerfile: "FROM x"}}, {"dockerfile", BuildRequest{Tag: "x", Dockerfile: " \n"}},
		{"dockerfile", BuildRequest{Tag: "x", Dockerfile: strings.Repeat("#", 1<<20+1)}},
		{"secrets", BuildRequest{Tag: "x", Dockerfile: "FROM x", Secrets: many}},
		{"registry_auth", BuildRequest{Tag: "x", Dockerfile: "FROM x", RegistryAuth: map[string]RegistryAuth{"ghcr.io": {
			Username: "me"}}}},
		{"registry_auth", BuildRequest{Tag: "x", Dockerfile: "FROM x", RegistryAuth: map[string]RegistryAuth{"": {
			RegistryToken: "x"}}}},
		{"registry_auth", BuildRequest{Tag: "x", Dockerfile: "FROM x", RegistryAuth: map[string]RegistryAuth{"ghcr.io": {
			RegistryToken: "\xff"}}}},
		{"secrets", BuildRequest{Tag: "x", Dockerfile: "FROM x", Secrets: map[string][]byte{"": nil}}},
		{"secrets", BuildRequest{Tag: "x", Dockerfile: "FROM x", Secrets: map[string][]byte{"a": make([]byte, 512001)}}},
	} {
		_, err := c.Build(t.Context(), w.req, nil, nil)
		var wrong *ArgumentError
		if !errors.As(err, &wrong) || wrong.Field != w.field {
			t.Errorf("%s: %v", w.field, err)
		}
	}
}

// The error of a build contains the step that failed first, the end of its output, and the daemon's
// error.
func TestBuildThatFails(t *testing.T) {
	long := strings.Repeat("x", 1000)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"plan":{"steps":["[a 1/2] FROM x","[a 2/2] RUN make"],"notes":[]}}`+"\n")
		for range 1000 {
			_, _ = io.WriteString(w, `{"output":{"number":1,"line":"`+long+`"}}`+"\n"+`{"output":{"number":0,"line":"o"}}`+"\n")
		}
		_, _ = io.WriteString(w, `{"output":{"number":1,"line":"last"}}
{"step":{"number":1,"state":"failed"}}
{"step":{"number":0,"state":"failed"}}
{"error":"Dockerfile:2: exit status 3","status":400,"code":"bad_request"}
`)
	}))
	defer srv.Close()
	c, err := New(srv.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Build(t.Context(), BuildRequest{Tag: "x", Dockerfile: "FROM x\n"}, nil, nil)
	var failed *BuildError
	if !errors.As(err, &failed) || !errors.Is(err, ErrBadRequest) || !IsStatus(err, http.StatusBadRequest) {
		t.Fatalf("%T: %v", err, err)
	}
	if failed.Number != 1 || failed.Step != "[a 2/2] RUN make" || err.Error() != "Dockerfile:2: exit status 3" {
		t.Errorf("%d %q: %v", failed.Number, failed.Step, err)
	}
	if n := len(failed.Output); n > 64<<10 || n < 60<<10 || !strings.HasPrefix(failed.Output, long+"\n") ||
		!strings.HasSuffix(failed.Output, "\n"+long+"\nlast") {
		t.Errorf("%d bytes of output", n)
	}
}
