package docker_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// limit is the time limit for events that must occur.
const limit = time.Minute

// hijack makes a request whose answer is a stream, and returns the connection and the answer's head.
func (r *rig) hijack(path, body string) (*net.UnixConn, *bufio.Reader, *http.Response) {
	r.t.Helper()
	conn, err := net.Dial("unix", r.socket)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(limit))
	fmt.Fprintf(conn, "POST /v1.44%s HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\n"+
		"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return conn.(*net.UnixConn), in, resp
}

// running() makes and starts a container that does nothing.
func (r *rig) running(query string) string {
	r.t.Helper()
	id := r.create(query, `,"Cmd":["sleep","600"]`)
	r.call("POST", "/containers/"+id+"/start", "", 204, nil)
	return id
}

// exec creates an exec, and returns its id.
func (r *rig) exec(container, fields string) string {
	r.t.Helper()
	var e struct {
		ID string `json:"Id"`
	}
	r.call("POST", "/containers/"+container+"/exec", fields, 201, &e)
	return e.ID
}

// exitCode waits for the end of an exec.
func (r *rig) exitCode(exec string) int {
	r.t.Helper()
	for begun := time.Now(); time.Since(begun) < limit; time.Sleep(5 * time.Millisecond) {
		var e struct {
			Running  bool
			ExitCode *int
		}
		if r.call("GET", "/exec/"+exec+"/json", "", 200, &e); !e.Running && e.ExitCode != nil {
			return *e.ExitCode
		}
	}
	r.t.Fatal("the exec does not end")
	return 0
}

func TestExec(t *testing.T) {
	r := start(t)
	id := r.create("?name=box", `,"Cmd":["sleep","600"],"WorkingDir":"/tmp"`)
	text := r.call("POST", "/containers/box/exec", `{"Cmd":["true"]}`, 409, nil)
	if !strings.Contains(text, "not running") {
		t.Error(text)
	}
	r.call("POST", "/containers/box/start", "", 204, nil)
	e := r.exec(id, `{"Cmd":["sh","-c","pwd; echo err >&2; cat; exit 4"],
		"AttachStdin":true,"AttachStdout":true,"AttachStderr":true}`)
	conn, in, resp := r.hijack("/exec/"+e+"/start", `{}`)
	if resp.StatusCode != 101 || resp.Header.Get("Content-Type") != "application/vnd.docker.multiplexed-stream" {
		t.Errorf("start: %s %v", resp.Status, resp.Header)
	}
	io.WriteString(conn, "input")
	conn.CloseWrite()
	p, err := io.ReadAll(in)
	if out, stderr := frames(t, p); err != nil || out != "/tmp\ninput" || stderr != "err\n" {
		t.Errorf("output %q %q %v", out, stderr, err)
	}
	if code := r.exitCode(e); code != 4 {
		t.Errorf("exit code %d", code)
	}
	r.call("POST", "/exec/"+e+"/start", `{}`, 409, nil)
	missing := r.exec(id, `{"Cmd":["no-such-command"],"AttachStdout":true}`)
	_, in, _ = r.hijack("/exec/"+missing+"/start", `{}`)
	if p, _ := io.ReadAll(in); !strings.Contains(string(p), "executable file not found") || r.exitCode(missing) != 127 {
		t.Errorf("missing command: %q", p)
	}
	detached := r.exec(id, `{"Cmd":["sh","-c","exit 6"]}`)
	r.call("POST", "/exec/"+detached+"/start", `{"Detach":true}`, 200, nil)
	if code := r.exitCode(detached); code != 6 {
		t.Errorf("detached: exit code %d", code)
	}
	r.call("POST", "/containers/box/exec", `{}`, 400, nil)
	r.call("POST", "/containers/box/exec", `{"Cmd":["true"],"Privileged":true}`, 400, nil)
	r.call("POST", "/exec/abc/start", `{}`, 404, nil)
	r.call("DELETE", "/containers/box?force=1", "", 204, nil)
	r.call("GET", "/exec/"+e+"/json", "", 404, nil)
}

func TestExecOnATerminal(t *testing.T) {
	r := start(t)
	id := r.running("")
	e := r.exec(id, `{"Cmd":["sh"],"Tty":true,"AttachStdin":true,"AttachStdout":true}`)
	conn, in, resp := r.hijack("/exec/"+e+"/start", `{"Tty":true,"ConsoleSize":[30,90]}`)
	if resp.Header.Get("Content-Type") != "application/vnd.docker.raw-stream" {
		t.Errorf("%v", resp.Header)
	}
	read := func(until string) (text string) {
		t.Helper()
		for !strings.Contains(text, until) {
			b, err := in.ReadByte()
			if err != nil {
				t.Fatalf("%q: %v", text, err)
			}
			text += string(b)
		}
		return text
	}
	io.WriteString(conn, "stty size\n")
	read("30 90")
	r.call("POST", "/exec/"+e+"/resize?h=40&w=100", "", 200, nil)
	io.WriteString(conn, "stty size\n")
	read("40 100")
	r.call("POST", "/exec/"+e+"/resize?h=x&w=100", "", 400, nil)
	conn.Write([]byte{0x10, 0x11}) // Ctrl-P Ctrl-Q
	if _, err := io.ReadAll(in); err != nil {
		t.Errorf("detach: %v", err)
	}
	var i struct{ Running bool }
	if r.call("GET", "/exec/"+e+"/json", "", 200, &i); !i.Running {
		t.Error("the process has ended with its client")
	}
}

func TestAttach(t *testing.T) {
	r := start(t)
	id := r.create("?name=cat", `,"Cmd":["sh","-c","echo begin; cat; exit 2"],"OpenStdin":true,"StdinOnce":true`)
	conn, in, resp := r.hijack("/containers/cat/attach?stream=1&stdin=1&stdout=1&stderr=1", "")
	if resp.StatusCode != 101 {
		t.Fatal(resp.Status)
	}
	io.WriteString(conn, "early") // before the start
	r.call("POST", "/containers/cat/start", "", 204, nil)
	conn.CloseWrite()
	p, err := io.ReadAll(in)
	if out, _ := frames(t, p); err != nil || out != "begin\nearly" {
		t.Errorf("%q %v", out, err)
	}
	if code := r.wait(id); code != 2 {
		t.Errorf("exit code %d", code)
	}
	_, in, _ = r.hijack("/containers/cat/attach?logs=1&stdout=1", "")
	p, _ = io.ReadAll(in)
	if out, _ := frames(t, p); out != "begin\nearly" {
		t.Errorf("logs=1: %q", out)
	}
}

// A client can wait for the end of a container before it starts the container, even if the
// container then removes itself.
func TestAutoRemove(t *testing.T) {
	r := start(t)
	id := r.create("", `,"Cmd":["sh","-c","exit 5"],"HostConfig":{"AutoRemove":true}`)
	_, _, resp := r.hijack("/containers/"+id+"/wait?condition=removed", "")
	if resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	r.call("POST", "/containers/"+id+"/start", "", 204, nil)
	text, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(text), `{"StatusCode":5}`) {
		t.Errorf("%q %v", text, err)
	}
	r.call("GET", "/containers/"+id+"/json", "", 404, nil)
}

func TestRefusals(t *testing.T) {
	r := start(t)
	for fields, name := range map[string]string{
		`"HostConfig":{"Privileged":true}`:                                  "HostConfig.Privileged",
		`"HostConfig":{"Binds":["/:/x"]}`:                                   "HostConfig.Binds",
		`"HostConfig":{"binds":["/:/x"]}`:                                   "HostConfig.binds",
		`"HostConfig":{"Mounts":[{"Type":"bind","Source":"/"}]}`:            "HostConfig.Mounts",
		`"HostConfig":{"NetworkMode":"host"}`:                               "HostConfig.NetworkMode host",
		`"HostConfig":{"NetworkMode":"container:x"}`:                        "HostConfig.NetworkMode",
		`"HostConfig":{"RestartPolicy":{"Name":"always"}}`:                  "HostConfig.RestartPolicy",
		`"HostConfig":{"Devices":[{"PathOnHost":"/dev/kvm"}]}`:              "HostConfig.Devices",
		`"HostConfig":{"SecurityOpt":["seccomp=unconfined"]}`:               "HostConfig.SecurityOpt",
		`"HostConfig":{"ReadonlyRootfs":true}`:                              "HostConfig.ReadonlyRootfs",
		`"HostConfig":{"ShmSize":1000}`:                                     "HostConfig.ShmSize",
		`"HostConfig":{"Memory":-5}`:                                        "HostConfig.Memory",
		`"HostConfig":{"Memory":"5"}`:                                       "HostConfig.Memory",
		`"HostConfig":{"CpuQuota":5000,"NanoCpus":5}`:                       "HostConfig.NanoCpus",
		`"NetworkingConfig":{"EndpointsConfig":{"net1":{"Aliases":["a"]}}}`: "NetworkingConfig.EndpointsConfig",
		`"Hostname":"other"`:                                                "Hostname",
		`"Volumes":{"/data":{}}`:                                            "Volumes",
		`"HostConfig":{"Tmpfs":{"/x":""}}`:                                  "HostConfig.Tmpfs",
		`"HostConfig":{"Ulimits":[{}]}`:                                     "HostConfig.Ulimits",
		`"HostConfig":{"LogConfig":{"Config":{"max-size":"1"}}}`:            "HostConfig.LogConfig.Config",
		`"Healthcheck":{"Test":["CMD","true"]}`:                             "Healthcheck",
		`"StopSignal":"NOPE"`:                                               "NOPE",
		`"StopTimeout":-1`:                                                  "StopTimeout",
		`"User":"user:group"`:                                               "User",
		`"Labels":{"a b":"c"}`:                                              "labels",
		`"Cmd":["a\u0000b"]`:                                                "Cmd",
		`"Env":["A=b\u0000"]`:                                               "env",
	} {
		text := r.call("POST", "/containers/create", `{"Image":"a.b",`+fields+`}`, 400, nil)
		if !strings.Contains(text, name) {
			t.Errorf("%s: %s: want the name %s", fields, text, name)
		}
	}
	named := r.call("POST", "/containers/create", `{"Image":"a.b","HostConfig":{"Binds":["data:/data"]}}`, 400, nil)
	if !strings.Contains(named, "forkd fork -v NAME:/PATH") {
		t.Errorf("a volume with a name: %s", named)
	}
	for _, query := range []string{"?name=a/b", "?name=-", "?platform=linux/arm64"} {
		r.call("POST", "/containers/create"+query, `{"Image":"a.b"}`, 400, nil)
	}
	for _, body := range []string{"", "{", "[]", "null", `{"Image":""}`} {
		r.call("POST", "/containers/create", body, 400, nil)
	}
	r.call("POST", "/containers/create", `{"Image":"a.b","Cmd":["`+strings.Repeat("x", 2<<20)+`"]}`, 413, nil)
	var list []any
	if r.call("GET", "/containers/json?all=1", "", 200, &list); len(list) != 0 {
		t.Errorf("refused requests have made %v", list)
	}
}

// The server accepts the fields that Docker's clients send even if their users did not set them.
func TestEmptyFields(t *testing.T) {
	r := start(t)
	r.create("?platform=linux/amd64", `,"Hostname":"","Domainname":"","Volumes":{},"OnBuild":null,"NetworkDisabled":false,
		"HostConfig":{"Binds":null,"ContainerIDFile":"/tmp/id","LogConfig":{"Type":"","Config":{}},"NetworkMode":"default",
		"PortBindings":{},"RestartPolicy":{"Name":"no","MaximumRetryCount":0},"VolumesFrom":null,"CapAdd":["NET_ADMIN"],
		"Dns":[],"ConsoleSize":[24,80],"MemorySwappiness":-1,"OomKillDisable":false,"PidsLimit":0,"Init":true},
		"NetworkingConfig":{"EndpointsConfig":{"default":{"IPAMConfig":null,"MacAddress":""}}}`)
}

func TestExecSize(t *testing.T) {
	r := start(t)
	id := r.running("")
	var variables []string
	for n := range 4000 {
		variables = append(variables, fmt.Sprintf(`"A%d="`, n))
	}
	long := strings.Repeat("x", 300<<10)
	for _, fields := range []string{`"Cmd":["true"],"Env":[` + strings.Join(variables, ",") + `]`,
		`"Cmd":["true","` + long + `"]`, `"Cmd":["true"],"User":"` + long + `"`} {
		r.call("POST", "/containers/"+id+"/exec", "{"+fields+"}", 400, nil)
	}
	e := r.exec(id, `{"Cmd":["true","`+strings.Repeat("x", 100<<10)+`"]}`)
	r.call("POST", "/exec/"+e+"/start", `{"Detach":true}`, 200, nil)
	if code := r.exitCode(e); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
