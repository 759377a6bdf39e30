package v1_test

import (
	"net/http"
	"strings"
	"testing"
)

// A page in a browser must not be able to drive the API, with or without the token that a proxy might add.
func TestAForeignPageIsRefused(t *testing.T) {
	_, url, _, _ := serve(t)
	for _, c := range []struct {
		origin string
		want   int
	}{{"", http.StatusBadRequest}, {"https://example.org", http.StatusForbidden}} {
		req, err := http.NewRequest("POST", url+"/v1/sandboxes", strings.NewReader(`{"n": 0}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		if c.origin != "" {
			req.Header.Set("Origin", c.origin)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("origin %q: status %d, want %d", c.origin, resp.StatusCode, c.want)
		}
	}
}
