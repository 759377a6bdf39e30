package docker_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/face"
)

func TestPull(t *testing.T) {
	r := startWith(t, apirig.Options{Images: []string{"docker.io/library/tool:1", "docker.io/team/app:latest"}})
	_, text := r.send("POST", "/images/create?fromImage=tool&tag=1", "")
	if !strings.Contains(text, "Downloaded newer image for tool:1") {
		t.Fatal(text)
	}
	if _, err := r.Snapshot(t.Context(), "tool.1"); err != nil {
		t.Error(err)
	}
	if _, text := r.send("POST", "/images/create?fromImage=tool&tag=1", ""); !strings.Contains(text, "up to date") {
		t.Error(text)
	}
	if _, text := r.send("POST", "/images/create?fromImage=docker.io/team/app&tag=latest", ""); !strings.Contains(text,
		"Downloaded newer image for team/app:latest") {
		t.Error(text)
	}
	var c struct {
		ID string `json:"Id"`
	}
	r.call("POST", "/containers/create", `{"Image":"team/app"}`, 201, &c)
	if got := r.names(); got != "a.b:latest team/app:latest tool:1" {
		t.Error(got)
	}
	if _, text := r.send("POST", "/images/create?fromImage=none&tag=1", ""); !strings.Contains(text, `"errorDetail"`) {
		t.Error(text)
	}
	for _, query := range []string{"", "fromImage=UPPER", "fromImage=x&tag=sha256:ab", "fromSrc=-",
		"fromImage=x&platform=linux/arm"} {
		r.call("POST", "/images/create?"+query, "", 400, nil)
	}
}

// A pull uses an existing snapshot as the registry's image only if an earlier pull has made the
// snapshot.
func TestPullOfATakenTag(t *testing.T) {
	root, user := startUser(t, apirig.Options{Images: []string{"docker.io/library/python:latest",
		"docker.io/library/python:3"}})
	user.commit("container=box&repo=python")
	evil := user.imageID("python")
	text := root.call("POST", "/images/create?fromImage=python&tag=latest", "", 409, nil)
	if !strings.Contains(text, "docker rmi") {
		t.Error(text)
	}
	root.call("DELETE", "/images/python", "", 200, nil)
	for _, tag := range []string{"latest", "3"} {
		for _, want := range []string{"Downloaded newer image", "up to date"} {
			_, text := root.send("POST", "/images/create?fromImage=python&tag="+tag, "")
			if !strings.Contains(text, want) {
				t.Errorf("%s: %s, want %s", tag, text, want)
			}
		}
		if root.imageID("python:"+tag) == evil {
			t.Error("the name leads to the image of the client")
		}
	}
	user.call("POST", "/images/evil/tag?repo=python", "", 403, nil)
	user.call("POST", "/commit?container=box&repo=python&tag=3", "{}", 403, nil)
	root.call("POST", "/images/python:3/tag?repo=py", "", 201, nil)
	if text := root.call("DELETE", "/images/python:3", "", 409, nil); !strings.Contains(text, "remove py:latest first") {
		t.Error(text)
	}
	root.call("DELETE", "/images/py", "", 200, nil)
	root.call("DELETE", "/images/python:3", "", 200, nil)
	if got := root.names(); got != "a.b:latest evil:latest python:latest" {
		t.Error(got)
	}
}

// A client cannot block the pull of an image by taking the tag that the pull would choose.
func TestPullWithATakenSnapshot(t *testing.T) {
	root, _ := startUser(t, apirig.Options{Images: []string{"docker.io/team/app:latest"}})
	sum := sha256.Sum256([]byte("team/app:latest"))
	root.branch("user", "team-app-latest-"+hex.EncodeToString(sum[:])[:12])
	evil := root.imageID("team-app-latest-" + hex.EncodeToString(sum[:])[:12])
	_, text := root.send("POST", "/images/create?fromImage=team/app", "")
	if !strings.Contains(text, "Downloaded newer image") {
		t.Fatal(text)
	}
	if root.imageID("team/app") == evil {
		t.Error("the name leads to the image of the client")
	}
}

// The credentials in a request are used for the registry of the request's image.
func TestPullWithCredentials(t *testing.T) {
	r := start(t)
	image, tag, _ := strings.Cut(apirig.PrivateImage, ":")
	pull := func(credentials string) string {
		req, err := http.NewRequestWithContext(t.Context(), "POST",
			"http://docker/v1.44/images/create?fromImage="+url.QueryEscape(image)+"&tag="+tag, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Registry-Auth", credentials)
		resp, err := r.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		p, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(p)
	}
	if text := pull(""); !strings.Contains(text, "another password") {
		t.Error(text)
	}
	if text := pull("!"); !strings.Contains(text, "X-Registry-Auth") {
		t.Error(text)
	}
	right := base64.URLEncoding.EncodeToString([]byte(`{"username":"me","password":"secret"}`))
	if text := pull(right); !strings.Contains(text, "Downloaded newer image") {
		t.Error(text)
	}
}

func TestPorts(t *testing.T) {
	r := start(t)
	guest := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "inside")
	}))
	defer guest.Close()
	at, err := url.Parse(guest.URL)
	if err != nil {
		t.Fatal(err)
	}
	port := at.Port() + "/tcp"
	id := r.create("?name=web", fmt.Sprintf(`,"Cmd":["sleep","600"],"ExposedPorts":{%q:{},"9/tcp":{}},
		"HostConfig":{"PortBindings":{%q:[{"HostIp":"","HostPort":""}]}}`, port, port))
	ports := func() map[string][]struct{ HostIp, HostPort string } {
		t.Helper()
		var c struct {
			NetworkSettings struct {
				Ports map[string][]struct{ HostIp, HostPort string }
			}
		}
		r.call("GET", "/containers/"+id+"/json", "", 200, &c)
		return c.NetworkSettings.Ports
	}
	r.call("POST", "/containers/web/start", "", 204, nil)
	open := ports()
	if len(open[port]) != 1 || open[port][0].HostIp != "127.0.0.1" || len(open["9/tcp"]) != 0 || len(open) != 2 {
		t.Fatalf("%+v", open)
	}
	address := "http://127.0.0.1:" + open[port][0].HostPort
	resp, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	p, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(p) != "inside" || err != nil {
		t.Errorf("%q %v", p, err)
	}
	http.DefaultClient.CloseIdleConnections()
	taken := open[port][0].HostPort
	other := r.create("", fmt.Sprintf(`,"HostConfig":{"PortBindings":{"80/tcp":[{"HostPort":%q}]}}`, taken))
	text := r.call("POST", "/containers/"+other+"/start", "", 409, nil)
	if !strings.Contains(text, "Bind for 127.0.0.1") {
		t.Error(text)
	}
	r.call("POST", "/containers/web/kill", "", 204, nil)
	if _, err := http.Get(address); err == nil {
		t.Error("the port of a container that has exited is open")
	}
	if open := ports(); len(open[port]) != 0 {
		t.Errorf("%+v", open)
	}
	for _, bindings := range []string{`"80/udp":[{}]`, `"x":[{}]`, `"0/tcp":[{}]`, `"80/tcp":[{"HostIp":"0.0.0.0"}]`,
		`"80/tcp":[{"HostIp":"127.77.0.1"}]`, `"80/tcp":[{"HostIp":"::ffff:127.0.0.1"}]`,
		`"80/tcp":[{"HostPort":"1-2"}]`, `"80/tcp":[{"HostPort":"70000"}]`} {
		r.call("POST", "/containers/create", `{"Image":"a.b","HostConfig":{"PortBindings":{`+bindings+`}}}`, 400, nil)
	}
}

// Connections to a published port take places of strangers, not places of the container's owner.
func TestStrangersAtPublishedPorts(t *testing.T) {
	r := startWith(t, apirig.Options{Limits: face.Limits{SignedPerSandbox: 1, StreamsPerSandbox: 1}})
	guest := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "inside")
	}))
	t.Cleanup(guest.Close) // runs after the connections are closed
	at, err := url.Parse(guest.URL)
	if err != nil {
		t.Fatal(err)
	}
	r.create("?name=web", fmt.Sprintf(`,"Cmd":["sleep","600"],"HostConfig":{"PortBindings":{"%s/tcp":[{}]}}`, at.Port()))
	r.call("POST", "/containers/web/start", "", 204, nil)
	var c struct {
		ForkdSandbox    string
		NetworkSettings struct {
			Ports map[string][]struct{ HostPort string }
		}
	}
	r.call("GET", "/containers/web/json", "", 200, &c)
	address := "127.0.0.1:" + c.NetworkSettings.Ports[at.Port()+"/tcp"][0].HostPort
	// ask makes a request over a connection, which stays open.
	ask := func() (status int, err error) {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conn.SetDeadline(time.Now().Add(limit))
		io.WriteString(conn, "GET / HTTP/1.1\r\nHost: web\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return 0, err
		}
		resp.Body.Close()
		return resp.StatusCode, nil
	}
	if status, err := ask(); status != 200 {
		t.Fatalf("the first stranger: %d, %v", status, err)
	}
	if status, err := ask(); err == nil {
		t.Errorf("a second stranger: %d", status)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", r.URL+"/v1/sandboxes/"+c.ForkdSandbox+"/tcp/"+
		at.Port(), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+apirig.Token)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "tcp")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 101 {
		t.Errorf("the owner: %s", resp.Status)
	}
	r.call("POST", "/containers/web/kill", "", 204, nil)
}
