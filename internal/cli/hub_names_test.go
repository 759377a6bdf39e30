package cli

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// If a redirect would drop the body of an upload, for example a redirect to a login page, it is an
// error. Without this error, the upload would look like a success. Downloads follow redirects.
func TestRedirectedArchives(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/archive" {
			http.Redirect(w, r, "/login", http.StatusFound)
		}
	}))
	defer server.Close()
	u, err := url.Parse(server.URL + "/archive")
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := webRequest(t.Context(), http.MethodGet, u, nil, 0); err != nil {
		t.Error(err)
	} else {
		resp.Body.Close()
	}
	resp, err := webRequest(t.Context(), http.MethodPut, u, strings.NewReader("archive"), 7)
	if err == nil {
		resp.Body.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "302") {
		t.Errorf("an upload: %v", err)
	}
}
