package v1

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/apitest"
	"github.com/forkd/forkd/internal/daemon/face"
)

// notMuxed lists documented operations that are not patterns of the mux. They are routed before the
// mux, because the mux would clean their paths.
var notMuxed = []string{"GET /v1/sandboxes/{id}/proxy/{port}/{path}"}

// notDocumented lists patterns without an operation of their own: other spellings, and the pattern
// for unknown paths.
var notDocumented = []string{"GET /healthz/{$}", "/"}

// The document contains every route of the API, and no other operation.
func TestDocumentHasTheRoutes(t *testing.T) {
	documented := slices.DeleteFunc(apitest.Routes(t), func(r string) bool { return slices.Contains(notMuxed, r) })
	documented = append(documented, notDocumented...)
	routes := []string{"/"}
	for _, row := range newAPI(Config{Face: face.New(face.Config{})}).routes() {
		routes = append(routes, row.pattern)
	}
	slices.Sort(documented)
	slices.Sort(routes)
	for _, r := range routes {
		if !slices.Contains(documented, r) {
			t.Errorf("%s: a route that api/openapi.yaml does not have", r)
		}
	}
	for _, d := range documented {
		if !slices.Contains(routes, d) {
			t.Errorf("%s: documented, and no route", d)
		}
	}
}

// The page shows every operation and every schema, and loads no other resource.
func TestPageOfTheDocument(t *testing.T) {
	w := httptest.NewRecorder()
	if err := documentPage(w, nil); err != nil {
		t.Fatal(err)
	}
	page := w.Body.String()
	for _, want := range []string{`id="GET-/v1/sandboxes/{id}"`, `id="schema-SandboxInfo"`, "cpu_weight",
		`All fields of <a href="#schema-SnapshotInfo">`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	for _, bad := range []string{"<script", "<img", "//cdn", "ZgotmplZ"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %s", bad)
		}
	}
}
