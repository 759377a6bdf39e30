package integration_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/forkd/forkd/client"
)

// effectCode makes a request with a method and a body. It prints the status and the answer's first
// word. With the argument "plain", it does not check the server's certificate.
const effectCode = `python3 - %s %s %s <<'END'
import ssl, sys, urllib.error, urllib.request
method, body, plain = sys.argv[1:]
r = urllib.request.Request("https://` + secretHost + `/pay", body.encode() if method != "GET" else None, method=method)
context = ssl._create_unverified_context() if plain == "plain" else None
try:
    a = urllib.request.urlopen(r, timeout=120, context=context)
except urllib.error.HTTPError as e:
    a = e
print(a.status, (a.read().decode().split() + [""])[0])
END`

// payments is a server that counts requests with effects.
type payments struct {
	mu   sync.Mutex
	made []string
}

func (p *payments) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Method != http.MethodGet {
		p.made = append(p.made, string(body))
	}
	fmt.Fprint(w, "server")
}

func (p *payments) all() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.made, " ")
}

// TestEffectsAreHeldUntilThePromotion holds the requests of a branch. The server receives only
// requests without effects, even after the daemon and forkd-net were killed. After the promotion,
// the source continues as the branch, and its requests reach the server. A request of another
// branch waits for its release.
func TestEffectsAreHeldUntilThePromotion(t *testing.T) {
	f, server := load(t), &payments{}
	address, roots := serveHTTPS(t, server.serve)
	t.Setenv("SSL_CERT_FILE", roots) // the host's root certificates, as the daemon sees them
	d := f.start(t, withArgs("--resolver", serveNames(t, address)))
	source := d.online(t, 1, client.Network{Mode: "allow", Allow: []string{address + ":443", secretHost}})[0]
	says := func(id, method, body, how, want string) {
		t.Helper()
		got := strings.TrimSpace(d.sh(t, id, fmt.Sprintf(effectCode, method, body, how)))
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s %s: %q, want %q", method, body, got, want)
		}
	}
	branch := func(answer string) client.Sandbox {
		t.Helper()
		r, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SourceID: source.ID, N: 1,
			HoldEffects: &client.Hold{Hosts: []string{secretHost}, Answer: answer}})
		if err != nil {
			t.Fatal(err)
		}
		return r.Sandboxes[0]
	}
	effects := func(id string) client.Effects {
		t.Helper()
		e, err := d.Effects(d.ctx(t, quietLimit), id)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	held := branch("record")
	says(held.ID, "GET", "none", "checked", "200 server")
	says(held.ID, "POST", "one", "checked", `202 {"effect":1,`)
	if e := effects(held.ID); len(e.List) != 1 || e.List[0].Body != "one" || e.List[0].Outcome != "recorded" ||
		e.List[0].URL != "https://"+secretHost+"/pay" {
		t.Errorf("%+v", e)
	}
	eventually(t, quietLimit, func() error { // the connection of the GET is allowed, that of the POST is not
		n, err := d.Network(d.ctx(t, quietLimit), held.ID)
		allowed := uint64(0)
		for _, a := range n.Stats.RecentAllowed {
			if a.Protocol == "tcp" {
				allowed += a.Count
			}
		}
		if err != nil || n.Stats.Refused["held"] != 1 || allowed != 1 {
			return fmt.Errorf("%+v: %v", n.Stats, err)
		}
		return nil
	})
	d.crash(t)
	d.launch(t)
	says(held.ID, "POST", "after-the-daemon", "checked", `202 {"effect":2,`)
	pid, _ := strconv.Atoi(d.processes(t, "forkd-net")[0])
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, quietLimit, func() error { // the first connections may be reset
		got := d.sh(t, held.ID, "("+fmt.Sprintf(effectCode, "POST", "after-forkd-net", "checked")+"\n) 2>&1 || true")
		if !strings.HasPrefix(got, "202 ") {
			return errors.New(got)
		}
		return nil
	})
	if got := server.all(); got != "" {
		t.Errorf("before the promotion the server was sent %q", got)
	}
	if _, err := d.Promote(d.ctx(t, bakeLimit), source.ID, client.PromoteRequest{From: held.ID}); err != nil {
		t.Fatal(err)
	}
	says(source.ID, "POST", "two", "plain", "200 server")
	says(held.ID, "POST", "three", "checked", `202 {"effect":`)

	waits := branch("wait")
	done := make(chan struct{})
	go func() {
		defer close(done)
		says(waits.ID, "POST", "four", "checked", "200 server")
	}()
	eventually(t, quietLimit, func() error {
		if e := effects(waits.ID); len(e.List) != 1 || e.List[0].Outcome != "waiting" {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	if got := server.all(); got != "two" {
		t.Errorf("before the release the server was sent %q", got)
	}
	if e, err := d.ReleaseEffects(d.ctx(t, quietLimit), waits.ID); err != nil || len(e.List) != 1 {
		t.Fatalf("%+v, %v", e, err)
	}
	<-done
	if got := server.all(); got != "two four" {
		t.Errorf("in the end the server was sent %q", got)
	}
	d.kill(t, held, waits, source)
}
