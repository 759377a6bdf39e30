package docker_test

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
)

// carrying adds a token to requests.
type carrying struct {
	http.RoundTripper
	token string
}

func (c carrying) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+c.token)
	return c.RoundTripper.RoundTrip(r)
}

// as(token) returns the rig for a client with the token of the given name.
func (r *rig) as(token string) *rig {
	client := *r
	client.http = &http.Client{Transport: carrying{r.http.Transport, r.Tokens[token]}}
	return &client
}

// startTenants starts a rig, and returns it for root and for two clients with prefixes.
func startTenants(t *testing.T) (root, a, b *rig) {
	t.Helper()
	root = startWith(t, apirig.Options{Tokens: []auth.Token{{Name: "a", Scope: auth.Run, Prefix: "team-a/"},
		{Name: "b", Scope: auth.Run, Prefix: "team-b/"}}})
	return root, root.as("a"), root.as("b")
}

// Labels that make a container visible to a client with a prefix.
const (
	ofA = `,"Labels":{"team-a/job":"1"}`
	ofB = `,"Labels":{"team-b/job":"1"}`
)

// idOf returns the id of the container that a name leads to.
func (r *rig) idOf(name string) string {
	r.t.Helper()
	var c struct {
		ID string `json:"Id"`
	}
	r.call("GET", "/containers/"+name+"/json", "", 200, &c)
	return c.ID
}

// A client with a prefix can neither learn the names that other clients have given, nor receive
// requests that these clients send by name.
func TestNamesOfOthers(t *testing.T) {
	root, a, b := startTenants(t)
	ofRoot := root.create("?name=db", "")
	mine := a.create("?name=db", ofA) // a conflict would reveal that root has this name
	if root.idOf("db") != ofRoot || a.idOf("db") != mine {
		t.Error("a name of another client comes before the client's own")
	}
	a.call("POST", "/containers/db/rename?name="+ofRoot[:20], "", 204, nil)
	if root.idOf(ofRoot[:20]) != ofRoot || a.idOf(ofRoot[:20]) != mine {
		t.Error("a name of another client comes before the beginning of an id")
	}
	a.call("POST", "/containers/"+mine+"/rename?name=job", "", 204, nil)
	if root.idOf("job") != mine {
		t.Error("root does not find the container of another client by its name")
	}
	text := a.call("POST", "/containers/create?name=job", `{"Image":"a.b"`+ofA+`}`, 409, nil)
	if !strings.Contains(text, mine) {
		t.Error(text)
	}
	b.create("?name=job", ofB)
	root.call("GET", "/containers/job/json", "", 400, nil) // two clients have given this name
	ofRoot = root.create("?name=job", "")
	if root.idOf("job") != ofRoot {
		t.Error("a name of another client keeps root from giving it")
	}
	if a.idOf("job") != mine {
		t.Error("the name of a leads elsewhere")
	}
}

// The name of a container cannot be the id of another container.
func TestNamesLikeIDs(t *testing.T) {
	r := start(t)
	id := r.create("?name=one", "")
	var c struct{ ForkdSandbox string }
	r.call("GET", "/containers/one/json", "", 200, &c)
	r.create("?name=two", "")
	for _, name := range []string{id, id[:12], c.ForkdSandbox} {
		r.call("POST", "/containers/two/rename?name="+name, "", 400, nil)
		r.call("POST", "/containers/create?name="+name, `{"Image":"a.b"}`, 400, nil)
		if r.idOf(name) != id {
			t.Errorf("%s leads elsewhere", name)
		}
	}
	r.call("POST", "/containers/two/rename?name=0123456789abcdef0123456789abcdef", "", 204, nil) // a UUID
}

// A name is free again after a failed creation, and after the removal of its container.
func TestFreeNames(t *testing.T) {
	r := start(t)
	r.call("POST", "/containers/create?name=x1", `{"Image":"a.b","Labels":{"":"1"}}`, 400, nil)
	id := r.create("?name=x1", "")
	r.call("POST", "/containers/x1/rename?name=x2", "", 204, nil)
	r.create("?name=x1", "")
	r.call("DELETE", "/containers/"+id, "", 204, nil)
	r.create("?name=x2", "")
}

// A client may use an image to which other clients have given names. With a prefix, the client does
// not see these names.
func TestImageNamesOfOthers(t *testing.T) {
	root, a, b := startTenants(t)
	root.call("POST", "/images/a.b/tag?repo=customer/secret", "", 201, nil)
	b.call("POST", "/images/a.b/tag?repo=team-b.x", "", 201, nil)
	a.call("POST", "/images/a.b/tag?repo=team-a.x", "", 201, nil)
	if got := root.names(); got != "a.b:latest+customer/secret:latest+team-b.x:latest+team-a.x:latest" {
		t.Error(got)
	}
	if got := a.names(); got != "a.b:latest+team-a.x:latest" {
		t.Error(got)
	}
	for _, path := range []string{"/images/a.b/json", "/images/a.b/history"} {
		if text := a.call("GET", path, "", 200, nil); strings.Contains(text, "secret") || strings.Contains(text, "team-b") {
			t.Errorf("%s: %s", path, text)
		}
	}
	for method, path := range map[string]string{"POST": "/images/a.b/tag?repo=", "DELETE": "/images/"} {
		// The answers do not tell whether the name exists.
		_, taken := a.send(method, path+"customer/secret", "")
		_, free := a.send(method, path+"customer/nothing", "")
		if strings.ReplaceAll(taken, "secret", "") != strings.ReplaceAll(free, "nothing", "") {
			t.Errorf("%s: %s and %s", method, taken, free)
		}
	}
	a.call("GET", "/images/customer/secret/json", "", 404, nil)
}

// A client with a prefix does not learn the names of the host and of its directories.
func TestInfoOfTenants(t *testing.T) {
	root, a, _ := startTenants(t)
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	var i struct{ Name, DockerRootDir, ID string }
	if root.call("GET", "/info", "", 200, &i); i.Name != name || i.DockerRootDir != root.Docker.Dir {
		t.Errorf("for root: %+v", i)
	}
	ofRoot := i
	if a.call("GET", "/info", "", 200, &i); i.Name != "forkd" || i.DockerRootDir != "" || i.ID == ofRoot.ID {
		t.Errorf("for a: %+v", i)
	}
}
