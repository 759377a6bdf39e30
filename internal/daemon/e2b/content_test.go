package e2b_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/host/vmfake"
)

// filer acts as forkd-files. It has the files that requests have written.
type filer struct {
	mu sync.Mutex
	// +checklocks:mu
	files map[string]string
	// +checklocks:mu
	during func() // called for each request; may be nil
	// +checklocks:mu
	calls int
}

func (f *filer) serve(_ *vmfake.VMM, conn net.Conn) {
	req, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return
	}
	p, err := io.ReadAll(req.Body)
	if err != nil {
		return // the VM is killed
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.during != nil {
		f.during()
	}
	name := req.URL.Query().Get("path")
	content, has := f.files[name]
	resp := &http.Response{StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{
		"Set-Cookie": {"a=b"}}, Close: true}
	body := []byte(content)
	switch {
	case req.Method == http.MethodPut:
		f.files[name], resp.StatusCode, body = string(p), http.StatusCreated, []byte(`{"path":"`+name+`"}`)
	case !has:
		resp.StatusCode, body = http.StatusNotFound, []byte(`{"code":"not_found","message":"no such file"}`)
	case req.Method == http.MethodDelete:
		delete(f.files, name)
		resp.StatusCode, body = http.StatusNoContent, nil
	case req.URL.Path == "/path":
		body = []byte(`{"path":"` + name + `","query":"` + req.URL.RawQuery + `"}`)
	}
	resp.ContentLength, resp.Body = int64(len(body)), io.NopCloser(bytes.NewReader(body))
	_ = resp.Write(conn) // fails if the VM is killed
	_, _ = io.Copy(io.Discard, conn)
}

// file sends a request for the files of a volume, checks the status, and returns the body.
func (r *rig) file(v vol, token, method, path, body string, want int) string {
	r.t.Helper()
	answer, text := r.send(method, "/volumecontent/"+v.ID+path, header{"Authorization": "Bearer " + token}, body)
	if answer.StatusCode != want || answer.Header.Get("Set-Cookie") != "" {
		r.t.Errorf("%s %s: %s with %v: %s; want %d", method, path, answer.Status, answer.Header, text, want)
	}
	if want >= 400 && (!strings.Contains(text, `"code":"`) || !strings.Contains(text, `"message":"`)) {
		r.t.Errorf("%s %s: the error %q is not E2B's", method, path, text)
	}
	return text
}

// The files of a volume can be used without a sandbox. While a request changes files, it is the
// volume's writer. While a sandbox writes to the volume, its files can only be read.
func TestContentOfVolumes(t *testing.T) {
	f := &filer{files: map[string]string{}}
	r := startSlots(t, apirig.Options{Files: f.serve})
	v := r.createVolume("data")
	writer := func() string {
		i, err := r.Volume(t.Context(), "data")
		if err != nil {
			t.Error(err)
		}
		return i.Writer
	}
	during := ""
	f.during = func() { during = writer() }
	if got := r.file(v, v.Token, "PUT", "/file?path=/x&mode=420&other=1", "content", 201); got != `{"path":"/x"}` {
		t.Errorf("written: %q", got)
	}
	if !strings.HasPrefix(during, "files-") || writer() != "" {
		t.Errorf("the writer was %q, and then %q", during, writer())
	}
	if got := r.file(v, v.Token, "GET", "/file?path=/x", "", 200); got != "content" || during != "" {
		t.Errorf("read: %q, with the writer %q", got, during)
	}
	got := r.file(v, v.Token, "GET", "/path?path=/x&depth=2&other=1", "", 200)
	if !strings.Contains(got, `"depth=2&path=%2Fx"`) {
		t.Errorf("described: %s", got)
	}
	r.file(v, v.Token, "GET", "/file?path=/none", "", 404)
	r.file(v, v.Token, "GET", "/file", "", 400)
	r.file(v, v.Token, "GET", "/other?path=/x", "", 501)
	r.file(vol{ID: "vol-none"}, r.key["X-API-Key"], "GET", "/file?path=/x", "", 401) // this key is not a token of /v1
	answer, _ := r.send("GET", "/volumecontent/vol-none/file?path=/x", r.key, "")
	if answer.StatusCode != http.StatusNotFound {
		t.Errorf("no such volume: %s", answer.Status)
	}

	b := r.create(`{"templateID":"slots","volumeMounts":[{"name":"data","path":"/data"}]}`)
	if got := r.file(v, v.Token, "PUT", "/file?path=/y", "more", 409); !strings.Contains(got, b.ID) {
		t.Errorf("a sandbox writes: %s", got)
	}
	r.file(v, v.Token, "GET", "/file?path=/x", "", 200)
	r.call("DELETE", "/sandboxes/"+b.ID, "", 204, nil)
	r.file(v, v.Token, "DELETE", "/path?path=/x", "", 204)
	r.file(v, v.Token, "GET", "/file?path=/x", "", 404)
	if left, err := os.ReadDir(r.Scratch); err != nil || len(left) > 0 || r.Filers.Count() != 0 {
		t.Errorf("%d copies and %d VMs are left, %v", len(left), r.Filers.Count(), err)
	}
	r.call("DELETE", "/volumes/"+v.ID, "", 204, nil)
	r.file(v, v.Token, "GET", "/file?path=/x", "", 404)
}

// A token of a volume is only for this volume, and gives the rights that its client has now.
func TestTokensOfVolumes(t *testing.T) {
	f := &filer{files: map[string]string{}}
	r := startSlots(t, apirig.Options{Files: f.serve, Tokens: []auth.Token{{Name: "a", Scope: auth.Run, Prefix: "team-a/"},
		{Name: "b", Scope: auth.Run, Prefix: "team-b/"}, {Name: "reader", Scope: auth.Read}}})
	as := func(name string) { r.key = header{"X-API-Key": "e2b_" + r.Tokens[name]} }
	as("a")
	v, other := r.createVolume("team-a.data"), r.createVolume("team-a.other")
	r.file(v, v.Token, "PUT", "/file?path=/x", "content", 201)
	as("b")
	own := r.createVolume("team-b.data")
	as("reader")
	var seen vol
	if r.call("GET", "/volumes/"+v.ID, "", 200, &seen); seen.Token != "none" {
		t.Errorf("a client that may only read descriptions has the token %q", seen.Token)
	}
	calls := f.calls
	name, _, _ := strings.Cut(v.Token, ".")
	for _, token := range []string{other.Token, own.Token, seen.Token, "", "fv_", name, v.Token + "A",
		name + own.Token[strings.IndexByte(own.Token, '.'):]} {
		r.file(v, token, "GET", "/file?path=/x", "", 401)
	}
	if answer, _ := r.send("GET", "/volumecontent/"+v.ID+"/file?path=/x", r.key, ""); answer.StatusCode != 403 {
		t.Errorf("a key that may only read descriptions: %s", answer.Status)
	}
	as("b")
	if answer, _ := r.send("GET", "/volumecontent/"+v.ID+"/file?path=/x", r.key, ""); answer.StatusCode != 404 {
		t.Errorf("a key of another client: %s", answer.Status)
	}
	if f.calls != calls {
		t.Error("a VM has served a request that was refused")
	}
	r.file(v, v.Token, "GET", "/file?path=/x", "", 200)
	tokens, err := os.ReadFile(r.TokenFile)
	if err == nil {
		lines := strings.SplitAfter(string(tokens), "\n")
		for i, line := range lines {
			if strings.HasPrefix(line, "a ") {
				lines[i] = ""
			}
		}
		err = os.WriteFile(r.TokenFile, []byte(strings.Join(lines, "")), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.file(v, v.Token, "GET", "/file?path=/x", "", 401)
}

// A VM that serves files may be hostile: the client gets an error, and the volume stays usable.
func TestContentFromHostileVMs(t *testing.T) {
	var answer string
	var mu sync.Mutex
	serve := func(_ *vmfake.VMM, conn net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(conn))
		mu.Lock()
		defer mu.Unlock()
		_, _ = io.WriteString(conn, answer)
		conn.Close()
	}
	r := startSlots(t, apirig.Options{Files: serve})
	v := r.createVolume("data")
	for i, text := range []string{"", "x", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{",
		"HTTP/1.1 201 Created\r\nContent-Length: 3\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n",
		"HTTP/1.1 302 Found\r\nLocation: http://example.com\r\nContent-Length: 0\r\n\r\n"} {
		mu.Lock()
		answer = text
		mu.Unlock()
		for _, method := range []string{"GET /path?path=/x", "DELETE /path?path=/x"} {
			method, path, _ := strings.Cut(method, " ")
			got, body := r.send(method, "/volumecontent/"+v.ID+path, r.key, "")
			if got.StatusCode < 500 || got.Header.Get("Location") != "" {
				t.Errorf("answer %d: %s %s", i, got.Status, fmt.Sprintf("%.200s", body))
			}
		}
	}
	if i, err := r.Volume(t.Context(), "data"); err != nil || i.Writer != "" {
		t.Errorf("afterwards: %+v, %v", i, err)
	}
}

// A hostile VM may answer before it has read the request's body, and the client may never send it.
// The answer is sent nevertheless, and the place of the VM is free for other requests.
func TestContentAnsweredEarly(t *testing.T) {
	serve := func(_ *vmfake.VMM, conn net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(conn))
		_, _ = io.WriteString(conn, "HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}")
		_, _ = io.Copy(io.Discard, conn)
	}
	r := startSlots(t, apirig.Options{Files: serve})
	v := r.createVolume("data")
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := fmt.Fprintf(conn, "PUT /volumecontent/%s/file?path=/x HTTP/1.1\r\nHost: %s\r\n"+
		"Authorization: Bearer %s\r\nContent-Length: 1000\r\n\r\nabc", v.ID, conn.RemoteAddr(), v.Token); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated || !resp.Close {
		t.Errorf("%s, close %t", resp.Status, resp.Close)
	}
	r.file(v, v.Token, "DELETE", "/path?path=/x", "", 201) // the VM says so
}

// A body that breaks off before its end is refused, and so is a body of a request that only reads.
func TestWrongBodiesOfContent(t *testing.T) {
	f := &filer{files: map[string]string{}}
	r := startSlots(t, apirig.Options{Files: f.serve})
	v := r.createVolume("data")
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err = fmt.Fprintf(conn, "PUT /volumecontent/%s/file?path=/x HTTP/1.1\r\nHost: %s\r\n"+
		"Authorization: Bearer %s\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nx\r\n",
		v.ID, conn.RemoteAddr(), v.Token); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("a body that breaks off: %s", resp.Status)
	}
	r.file(v, v.Token, "GET", "/file?path=/x", "", 404)
	r.file(v, v.Token, "GET", "/file?path=/x", "body", 400)
}

// While a request for a volume waits, the volume is removed, and another volume is made with the
// same name. The request must not use the other volume.
func TestContentOfARemovedVolume(t *testing.T) {
	f := &filer{files: map[string]string{"/x": "content"}}
	r := startSlots(t, apirig.Options{Files: f.serve})
	busy, v := r.createVolume("busy"), r.createVolume("data")
	begun, release := make(chan bool), make(chan bool)
	var once sync.Once
	f.during = func() { once.Do(func() { close(begun); <-release }) }
	var calls sync.WaitGroup
	calls.Go(func() { r.file(busy, busy.Token, "GET", "/file?path=/x", "", 200) })
	<-begun
	for _, method := range []string{"GET", "PUT"} {
		calls.Go(func() { r.file(v, v.Token, method, "/file?path=/x", "", 404) })
	}
	time.Sleep(500 * time.Millisecond) // until both wait; they are refused even if they come later
	r.call("DELETE", "/volumes/"+v.ID, "", 204, nil)
	again := r.createVolume("data")
	close(release)
	calls.Wait()
	r.file(again, again.Token, "GET", "/file?path=/x", "", 200)
	if i, err := r.Volume(t.Context(), "data"); err != nil || i.Writer != "" {
		t.Errorf("afterwards: %+v, %v", i, err)
	}
}

// Without a snapshot there is no kernel for the VM.
func TestContentWithoutASnapshot(t *testing.T) {
	r := start(t)
	v := r.createVolume("data")
	if err := r.DeleteSnapshot(t.Context(), "a.b", client.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := r.file(v, v.Token, "GET", "/file?path=/x", "", 409); !strings.Contains(got, "build a snapshot first") {
		t.Error(got)
	}
}
