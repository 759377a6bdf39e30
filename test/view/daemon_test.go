package view

import (
	"os"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// logIn opens the view of the daemon itself, and enters a token.
func (p *page) logIn(r *rig, token string) {
	p.t.Helper()
	p.do("open /ui", chromedp.Navigate(r.URL+"/ui"))
	p.wait(`document.querySelector("#token")`)
	p.do("enter the token", focus("#token"), chromedp.KeyEvent(token), chromedp.KeyEvent(kb.Enter))
}

// TestDaemonsOwnView opens the view at the daemon's address. This view asks for a token.
func TestDaemonsOwnView(t *testing.T) {
	r := startRig(t)
	id := r.fork("base", 1, map[string]string{"name": "first"})[0]
	p := newBrowser(t)
	p.logIn(r, "a wrong token")
	p.waitText("invalid bearer token")
	for _, theme := range []string{"light", "dark"} {
		p.theme(theme)
		p.accessible(theme + " login")
	}
	p.do("enter the token", focus("#token"))
	p.eval(`document.activeElement.select()`)
	p.do("enter the token", chromedp.KeyEvent(r.Token), chromedp.KeyEvent(kb.Enter))
	p.wait(`document.querySelector("[role=treeitem]")`)
	p.waitText("first")
	if eval[string](p, `document.cookie`) != "" {
		t.Error("a script can read the session's cookie")
	}
	if eval[bool](p, `JSON.stringify([Object.entries(localStorage), Object.entries(sessionStorage)]).includes("`+r.Token+`")`) {
		t.Error("the page keeps the token")
	}
	p.do("fork one", focus("[role=tree]"), chromedp.KeyEvent(kb.Home), chromedp.KeyEvent("f"))
	p.wait(`document.querySelector("dialog[open]")`)
	p.eval(`document.activeElement.select()`)
	p.do("confirm", chromedp.KeyEvent("1"), chromedp.KeyEvent(kb.Enter))
	p.wait(`document.querySelectorAll(".row .icon.sandbox.running").length >= 2`)
	p.do("reload", chromedp.Reload())
	p.wait(`document.querySelectorAll(".row .icon.sandbox.running").length >= 2`)
	p.eval(`location.hash = "#/sandbox/` + id + `"`)
	terminal := `document.querySelector(".xterm-rows").innerText`
	p.wait(`document.querySelector(".xterm-rows") && /[#$]/.test(` + terminal + `)`)
	p.command("echo ok$((2+4))")
	p.wait(terminal + `.includes("ok6")`)

	p.page("#/host", `document.body.innerText.includes("Run forkd doctor on the daemon's host")`)

	// With a session, the address of the login form leads to the tree.
	p.do("open /ui again", chromedp.Navigate(r.URL+"/ui/"))
	p.wait(`document.querySelector("[role=treeitem]")`)
	p.onlyOwnRequests()
	p.eval(`[...document.querySelectorAll("header button")].find((b) => b.textContent === "Sign out").click()`)
	p.wait(`document.querySelector("#token")`)
	p.do("open /ui again", chromedp.Navigate(r.URL+"/ui/"))
	p.wait(`document.querySelector("#token")`)
	p.clean(statsOfEnded, "401")
}

// TestRevokedToken revokes the token of a session while the page is shown.
func TestRevokedToken(t *testing.T) {
	r := startRig(t)
	p := newBrowser(t)
	p.logIn(r, r.Token)
	p.wait(`document.querySelector("[role=treeitem]")`)
	if err := os.WriteFile(r.Tokens, []byte("# no token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.wait(`document.querySelector("#token")`)
	p.clean("401", "ERR_")
}

// TestHostilePagesAtTheDaemon opens pages of another origin in a browser that has a session at the
// daemon's own view.
func TestHostilePagesAtTheDaemon(t *testing.T) {
	r := startRig(t)
	p := newBrowser(t)
	p.logIn(r, r.Token)
	p.wait(`document.querySelector("[role=treeitem]")`)
	p.attack(r)
}
