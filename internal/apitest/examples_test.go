package apitest

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3filter"
)

// example is an expression for a line of the curl tour in docs/api.md: a path and perhaps options
// of curl. option is an expression for one of these options.
var (
	example = regexp.MustCompile(`^forkd "?(/[^\s"]+)"?((?: -\w (?:'[^']*'|[^\s']+))*)(?:\s+#.*)?$`)
	option  = regexp.MustCompile(`-(\w) (?:'([^']*)'|([^\s']+))`)
)

// The requests in docs/api.md conform to api/openapi.yaml.
func TestExamplesOfTheDocument(t *testing.T) {
	router, err := load()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "forkd ") {
			continue
		}
		m := example.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("%s: not understood by this test", line)
			continue
		}
		method, body := http.MethodGet, ""
		contentType, asked := "application/json", ""
		for _, o := range option.FindAllStringSubmatch(m[2], -1) {
			switch o[1] {
			case "d":
				method, body = http.MethodPost, o[2]
			case "T":
				method, body, contentType = http.MethodPut, "content of the file", "application/octet-stream"
				if strings.HasSuffix(o[3], ".tar") {
					contentType = "application/x-tar"
				}
			case "X":
				asked = o[3]
			}
		}
		if asked != "" {
			method = asked
		}
		req, err := http.NewRequest(method, strings.ReplaceAll(m[1], "$id", "sb-x"), strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", contentType)
		route, params, err := router.FindRoute(req)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		err = openapi3filter.ValidateRequest(t.Context(), &openapi3filter.RequestValidationInput{
			Request: req, PathParams: params, Route: route, Options: &openapi3filter.Options{
				AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, RejectWhenRequestBodyNotSpecified: true,
			},
		})
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
		checked++
	}
	if checked < 8 {
		t.Errorf("docs/api.md has %d examples: there were more", checked)
	}
}
