package view

import (
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
