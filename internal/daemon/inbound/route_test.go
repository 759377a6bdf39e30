package inbound

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/daemon/auth"
)

const id = "sb-askayjdqa5urabarmv2ude3h6q"

func TestFindPath(t *testing.T) {
	for target, want := range map[string]Route{
		"/v1/sandboxes/" + id + "/proxy/80":                          {Port: 80, Path: "/"},
		"/v1/sandboxes/" + id + "/proxy/80/":                         {Port: 80, Path: "/"},
		"/v1/sandboxes/" + id + "/proxy/65535/a//b/../c?x=/..":       {Port: 65535, Path: "/a//b/../c"},
		"/v1/sandboxes/" + id + "/proxy/1/../../../v1/forks":         {Port: 1, Path: "/../../../v1/forks"},
		"/v1/sandboxes/" + id + "/proxy/80/%2f..%2F%2e%2e/x%20y":     {Port: 80, Path: "/%2f..%2F%2e%2e/x%20y"},
		"/v1/sandboxes/" + id + "/proxy/80//evil.example/":           {Port: 80, Path: "//evil.example/"},
		"/v1/sandboxes/" + id + "/proxy/80/v1/sandboxes/x/proxy/9/y": {Port: 80, Path: "/v1/sandboxes/x/proxy/9/y"},
	} {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := FindPath(u)
		want.ID, want.Prefix = id, target[:strings.Index(target, "/proxy/")+len("/proxy/")]+strings.FieldsFunc(target,
			func(r rune) bool { return r == '/' || r == '?' })[4]
		if !ok || got != want {
			t.Errorf("%s: %+v, %v, want %+v", target, got, ok, want)
		}
	}
	for _, target := range []string{
		"/v1/sandboxes/" + id + "/proxy/0/", "/v1/sandboxes/" + id + "/proxy/080/", "/v1/sandboxes/" + id + "/proxy/65536/",
		"/v1/sandboxes/" + id + "/proxy/-1/", "/v1/sandboxes/" + id + "/proxy/+80/", "/v1/sandboxes/" + id + "/proxy/8%30/",
		"/v1/sandboxes/" + id + "/proxy/127.0.0.1:80/", "/v1/sandboxes/" + id + "/proxy/http/",
		"/v1/sandboxes/" + id + "/proxy//80/",
		"/v1/sandboxes/" + id + "/proxy/", "/v1/sandboxes/../proxy/80/", "/v1/sandboxes/%2e%2e/proxy/80/",
		"/v1/sandboxes/a%2fb/proxy/80/", "//v1/sandboxes/" + id + "/proxy/80/", "/x/v1/sandboxes/" + id + "/proxy/80/",
		"/v1/sandboxes/" + id + "/%70roxy/80/", "/v1/sandboxes/" + id + "/exec",
	} {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := FindPath(u); ok {
			t.Errorf("%s is taken for %+v", target, got)
		}
	}
}

func TestFindHost(t *testing.T) {
	d, err := ParseDomain("https://Sandboxes.Example.com:8443")
	if err != nil {
		t.Fatal(err)
	}
	u := &url.URL{Path: "/a b", RawPath: ""}
	permission := strings.Repeat("a", 27)
	for host, want := range map[string]Route{
		"80-" + id + ".sandboxes.example.com":                               {Port: 80},
		"80-" + strings.ToUpper(id) + ".SANDBOXES.example.com:1":            {Port: 80},
		"65535-" + id + "-" + permission + ".sandboxes.example.com.:8443":   {Port: 65535, Signed: true},
		"65535-" + id + "-" + permission[:5] + ".sandboxes.example.com:443": {Port: 65535, Signed: true},
	} {
		want.ID, want.Path = id, "/a%20b"
		got, _, below, err := d.FindHost(host, u)
		if !below || err != nil || got != want {
			t.Errorf("%s: %+v, %v, %v", host, got, below, err)
		}
	}
	for _, host := range []string{ // these names are below the domain, so the API never serves them
		"x.sandboxes.example.com", "80.sandboxes.example.com", "0-" + id + ".sandboxes.example.com",
		"65536-" + id + ".sandboxes.example.com",
		"80-" + id + "-.sandboxes.example.com", "80-" + id + "-" + permission + "a.sandboxes.example.com",
		"a.80-" + id + ".sandboxes.example.com",
		"80-sb-short.sandboxes.example.com", ".sandboxes.example.com", "127.0.0.1.sandboxes.example.com",
		"80-" + id + "%00.sandboxes.example.com",
	} {
		if r, _, below, err := d.FindHost(host, u); !below || err == nil {
			t.Errorf("%s: %+v, below %v, no error", host, r, below)
		}
	}
	for _, host := range []string{"sandboxes.example.com", "80-" + id + ".sandboxes.example.com.evil",
		"evilsandboxes.example.com", "", "[::1]:80",
		"80-" + id + ".sandboxes.example.com:80:80"} {
		if _, _, below, _ := d.FindHost(host, u); below {
			t.Errorf("%s is taken for a name below the domain", host)
		}
	}
	if _, _, below, _ := (Domain{}).FindHost("80-"+id+".", u); below {
		t.Error("no domain, and a name below it")
	}
}

func TestDomain(t *testing.T) {
	for text, want := range map[string]string{
		"localhost":           "http://80-x-p.localhost:8889/",
		"a.example":           "http://80-x-p.a.example:8889/",
		"a.example:80":        "http://80-x-p.a.example/",
		"https://a.example":   "https://80-x-p.a.example:8889/",
		"HTTPS://A.EXAMPLE:9": "https://80-x-p.a.example:9/",
	} {
		d, err := ParseDomain(text)
		if got := d.WithPort("8889").URL("x", 80, "p"); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "ftp://a.example", "http://", "a.example/", "a.example:0", "a.example:x",
		"127.0.0.1", "*.a.example", "-a.example",
		"a..example", "a.example.", "a b", "u@a.example", "[::1]", strings.Repeat("a.", 120) + "example"} {
		if d, err := ParseDomain(text); err == nil {
			t.Errorf("%q: %+v", text, d)
		}
	}
}

func TestOwnLocation(t *testing.T) {
	route := Route{ID: id, Port: 80, Path: "/app/page", Prefix: "/v1/sandboxes/" + id + "/proxy/80"}
	for location, want := range map[string]string{
		"/login?next=%2F#top":               "/login?next=%2F#top",
		"next":                              "/app/next",
		"../up":                             "/up",
		"../../../../../v1/forks":           "/v1/forks",
		"/v1/sandboxes/sb-other":            "/v1/sandboxes/sb-other",
		"?q=1":                              "/app/page?q=1",
		"http://daemon.example:8889/x":      "/x",
		"http://DAEMON.example:8889/x":      "/x",
		"http://localhost:80/x":             "/x",
		"http://127.0.0.1:80":               "/",
		"http://[::1]:80/x":                 "/x",
		"/a%2fb":                            "/a%2fb",
		"/%2e%2e/%2e%2e/x":                  "-",
		"/..%2f..%2fx":                      "-",
		"/%252e%252e/x":                     "-",
		`/\..\..\..\..\x`:                   "-",
		"/..%5c..%5cx":                      "-",
		"//evil.example/x":                  "-",
		"http://evil.example/x":             "-",
		"http://127.0.0.1:8889/v1/forks":    "-",
		"http://localhost:81/x":             "-",
		"http://localhost/x":                "-",
		"javascript:alert(1)":               "-",
		"file:///etc/passwd":                "-",
		"http://u:p@daemon.example:8889/x":  "-",
		"http:x":                            "-",
		"http://daemon.example:8889/../../": "/",
		"\x7f":                              "-",
	} {
		got, ok := ownLocation(location, "daemon.example:8889", &route)
		if want == "-" {
			if ok {
				t.Errorf("%q is passed on as %q", location, got)
			}
		} else if !ok || got != route.Prefix+want {
			t.Errorf("%q: %q, %v, want …%s", location, got, ok, want)
		}
	}
}

// A redirect to another host is removed for programs other than browsers. Such a program would send
// the daemon's token to the new host, or send the daemon a request that the guest chose. Browsers
// may be redirected, because they do not send the token to a new host.
func TestForeignRedirectsByHostName(t *testing.T) {
	const elsewhere, own = "http://attacker.example/", "http://80-sb.example:8889/x"
	for name, c := range map[string]struct {
		route  Route
		header http.Header
		to     string
		want   string
	}{
		"a program":          {Route{}, http.Header{}, elsewhere, ""},
		"a program, own":     {Route{}, http.Header{}, own, "/x"},
		"over a unix socket": {Route{}, http.Header{}, "http://x/v1/sandboxes/sb-other", ""},
		"a browser":          {Route{}, http.Header{"Sec-Fetch-Site": {"none"}}, elsewhere, elsewhere},
		"a browser with the token": {Route{}, http.Header{"Sec-Fetch-Site": {"none"}, auth.TokenHeader: {"t"}}, elsewhere,
			""},
		"signed": {Route{Signed: true}, http.Header{}, elsewhere, elsewhere},
	} {
		c.route.Port, c.route.Path = 80, "/"
		resp := &http.Response{Header: http.Header{"Location": {c.to}}}
		contain(resp, &http.Request{Host: "80-sb.example:8889", Header: c.header}, &c.route)
		if got := resp.Header.Get("Location"); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
