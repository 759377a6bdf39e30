package view

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestNetwork shows the network policy of a sandbox, and replaces it.
func TestNetwork(t *testing.T) {
	r := startRig(t)
	id := r.fork("base", 1, nil)[0]
	v := startView(t, r.URL, r.Token)
	p := newBrowser(t)
	p.open(v)
	p.eval(`location.hash = "#/sandbox/` + id + `/network"`)
	p.waitText("public: the internet, no private networks")
	p.click(".panel", "Change the policy")
	p.wait(`document.querySelector("dialog select")`)
	p.eval(`{const e = document.querySelector("dialog select"); e.value = "allow"; e.dispatchEvent(new Event("change", {bubbles: true})); }`)
	p.do("allow two names", focus("dialog .field:nth-of-type(2) input"), chromedp.KeyEvent("pypi.org, *.example.com"))
	p.wait(`document.querySelector("dialog .calls pre").textContent ===
		"forkd net set ` + id + ` --net allow --allow pypi.org --allow '*.example.com'"`)
	p.click("dialog .buttons", "Set")
	p.waitText("pypi.org *.example.com")
	var got struct {
		Mode  string
		Allow []string
	}
	r.call("GET", "/v1/sandboxes/"+id+"/network", struct{}{}, &got)
	if got.Mode != "allow" || len(got.Allow) != 2 {
		t.Errorf("the policy is %+v", got)
	}

	// A policy with limits is shown, and the dialog must not replace it.
	limited := map[string]any{"mode": "none", "limits": map[string]int{"connections": 7}}
	r.call("PUT", "/v1/sandboxes/"+id+"/network", limited, nil)
	p.waitText("none: no connections")
	p.waitText("7 connections")
	p.waitText("forkd net set")
	p.clean(statsOfEnded)
}

// TestTraffic shows the destinations of a sandbox's connections. The sandbox has chosen their names.
func TestTraffic(t *testing.T) {
	d := startFakeDaemon(t)
	d.snapshot("base", nil)
	d.sandbox("sb-a", nil)
	const hostile = `<img src=x onerror="document.title='owned'">`
	d.network = record{"mode": "public", "stats": record{"open": 3, "connections": 3, "up_bytes": 4096,
		"down_bytes": 1 << 20, "dns_queries": 2, "dropped": 0, "refused": record{"private": 2},
		"open_connections": []record{{"protocol": "tcp", "address": "192.0.2.9:443", "name": hostile, "up_bytes": 1024,
			"down_bytes": 5 << 20, "began_unix": 1764000000, "last_unix": 1764000060}},
		"recent_allowed": []record{
			{"protocol": "tcp", "address": "192.0.2.7:443", "name": hostile, "up_bytes": 2048, "down_bytes": 3 << 20,
				"count": 3, "last_unix": 1764000000},
			{"protocol": "udp", "address": "192.0.2.8:123", "up_bytes": 48, "down_bytes": 48, "count": 1,
				"last_unix": 1764000000},
		},
		"recent": []record{{"protocol": "tcp", "address": "10.1.2.3:80", "name": hostile, "reason": "private",
			"why": "private range", "fix": "allow it with --allow 10.1.2.3", "count": 2, "last_unix": 1764000000}}}}
	v := startView(t, d.URL, "")
	p := newBrowser(t)
	p.open(v)
	p.eval(`location.hash = "#/sandbox/sb-a/network"`)
	p.waitText("Last allowed")
	row := func(table string, n int) string {
		return eval[string](p, fmt.Sprintf(`[...document.querySelectorAll("table")].find((t) =>
			t.innerText.includes(%q)).rows[%d].innerText`, table, n))
	}
	if got := row("Open since", 1); !strings.Contains(got, "tcp "+hostile+" 192.0.2.9:443\t1.0 KiB\t5.0 MiB\t") {
		t.Errorf("open: %q", got)
	}
	p.waitText("2 more are open.")
	for n, want := range []string{"tcp " + hostile + " 192.0.2.7:443\t2.0 KiB\t3.0 MiB\t3",
		"udp 192.0.2.8:123\t48 B\t48 B\t1"} {
		if got := row("Last allowed", n+1); !strings.HasSuffix(got, want) {
			t.Errorf("row %d: %q, want %q", n, got, want)
		}
	}
	const refused = "tcp " + hostile + " 10.1.2.3:80\tprivate range: allow it with --allow 10.1.2.3\t2"
	if got := row("Last refused", 1); !strings.HasSuffix(got, refused) {
		t.Errorf("refused: %q, want %q", got, refused)
	}
	if eval[string](p, `document.title`) == "owned" || eval[int](p, `document.querySelectorAll("img").length`) != 0 {
		t.Error("a name became an element of the page")
	}
	p.accessible("traffic")
	p.clean("404")
}
