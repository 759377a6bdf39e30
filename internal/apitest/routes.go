package apitest

import (
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/forkd/forkd/api"
)

// Routes returns the operations of the document as patterns of http.ServeMux, such as
// "GET /v1/sandboxes/{id}".
func Routes(t testing.TB) (routes []string) {
	t.Helper()
	p, err := api.FS.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]any `yaml:"paths"`
	}
	if err := yaml.Unmarshal(p, &doc); err != nil {
		t.Fatal(err)
	}
	for path, item := range doc.Paths {
		for method := range item {
			if method != "parameters" { // the key "parameters" applies to all operations of the path
				routes = append(routes, strings.ToUpper(method)+" "+path)
			}
		}
	}
	return routes
}
