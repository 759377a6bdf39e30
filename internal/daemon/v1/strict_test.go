package v1

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	apidoc "github.com/forkd/forkd/api"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
)

// documentedQueries returns the query parameters of the operations in the document.
func documentedQueries(t *testing.T) map[string][]string {
	t.Helper()
	p, err := apidoc.FS.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc page
	if err := yaml.Unmarshal(p, &doc); err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for _, item := range doc.Paths {
		for _, op := range item.Value.Operations() {
			var names []string
			for _, p := range append(item.Value.Parameters, op.Value.Parameters...) {
				if p = doc.Resolve(p); p.In == "query" {
					names = append(names, p.Name)
				}
			}
			slices.Sort(names)
			all[op.Key+" "+item.Key] = names
		}
	}
	return all
}

// Every route accepts the query parameters in the document, and refuses other parameters with an
// error that names them.
func TestUnknownQueryParameters(t *testing.T) {
	documented := documentedQueries(t)
	if len(documented["GET /v1/events"]) == 0 {
		t.Fatal("no parameters found in the document")
	}
	for _, row := range newAPI(Config{Face: face.New(face.Config{})}).routes() {
		method, path, _ := strings.Cut(row.pattern, " ")
		if !strings.HasPrefix(path, "/v1/") {
			continue
		}
		pattern, known := row.pattern, slices.Sorted(slices.Values(row.query))
		if method != http.MethodPatch && !slices.Equal(known, documented[pattern]) { // the HTML page lacks PATCH
			t.Errorf("%s: takes %v, documented %v", pattern, known, documented[pattern])
		}
		err := checkQuery(row, httptest.NewRequest(method, "/v1/x?lable=job", nil))
		if err == nil || face.StatusOf(err) != http.StatusBadRequest || !strings.Contains(err.Error(), "lable") {
			t.Errorf("%s?lable=job: %v", pattern, err)
		}
		for _, name := range known {
			if !strings.Contains(err.Error(), name) {
				t.Errorf("%s?lable=job: %v: it lacks %s", pattern, err, name)
			}
			if err := checkQuery(row, httptest.NewRequest(method, "/v1/x?"+name+"=1", nil)); err != nil {
				t.Errorf("%s?%s=1: %v", pattern, name, err)
			}
		}
	}
}

// A request with a typing error, or from a script with an unset variable, gets an error that names
// the mistake. The request is not served by another route.
func TestSlips(t *testing.T) {
	s := New(Config{Face: face.New(face.Config{}), Metrics: http.NotFoundHandler()})
	for _, c := range []struct{ method, path, body, want string }{
		{"POST", "/v1/sandboxes//exec", `{"args":["ls"]}`, "is empty"},
		{"GET", "/v1/sandboxes//network", "", "is empty"},
		{"DELETE", "/v1/sandboxes/", "", "no such route: an id or a name is missing"},
		{"DELETE", "/v1/snapshots//", "", "is empty"},
		{"GET", "/v1/snapshots/../sandboxes", "", "is empty"},
		{"GET", "/v1/sandboxes?lable=job=7", "", "lable"},
		{"GET", "/v1/sandboxes?state=foo", "", "state"},
		{"GET", "/v1/snapshots?partial=maybe", "", "partial: \\\"maybe\\\": want true or false"},
		{"GET", "/v1/sandboxes?a=%zz", "", "query"},
		{"GET", "/v1/events?gather_secs=1.5", "", "gather_secs: \\\"1.5\\\": want 0 to 1 seconds"},
		{"GET", "/v1/events?gather_secs=-1", "", "gather_secs: "},
		{"GET", "/v1/events?records=yes", "", "records: "},
		{"POST", "/v1/sandboxes", `{"snapshot_tag":""}`, "snapshot_tag: it is empty"},
		{"POST", "/v1/sandboxes", `{"snapshot_tag":"a","n":1,"n":2}`, "n: the field is there twice"},
		{"POST", "/v1/sandboxes", `{"env":{"A":"b","A":"c"}}`, "env.A: the field is there twice"},
		{"POST", "/v1/sandboxes", `[]`, "the request body: got an array, want an object"},
		{"POST", "/v1/workspaces", `{"name":""}`, "name: it is empty"},
		{"GET", "/v1/" + strings.Repeat("x", 5000), "", "no such route"},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
		s.ServeHTTP(w, r.WithContext(auth.With(r.Context(), auth.Principal{})))
		if got := w.Body.String(); w.Code/100 != 4 || !strings.Contains(got, c.want) || len(got) > 1500 {
			t.Errorf("%s %.60s %s: %d %.300s, want %q", c.method, c.path, c.body, w.Code, got, c.want)
		}
	}
	for body, want := range map[string]string{
		`{"tag":""}`:        "tag: it is empty",
		`{"parent_tag":""}`: "parent_tag: it is empty",
		`{"to":""}`:         "to: it is empty",
		`{"TO":""}`:         "TO: it is empty",
		`{"args":null}`:     "args: null: give a value",
	} {
		var v struct {
			Tag, Parent_tag, To string
			Args                []string
		} //nolint:revive // the names of JSON
		err := face.ReadJSON(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(body)), &v)
		if err == nil || face.StatusOf(err) != http.StatusBadRequest || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
}
