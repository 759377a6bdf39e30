package ui

import (
	"errors"
	"net/http"
)

// Header is sent with every request of the page that changes something. A page of another origin
// cannot send it without the server's permission, which the server never gives.
const Header = "Forkd-View"

// policy is the Content-Security-Policy of the page. The page may load and run only its own files,
// and connect only to its own server. Markup becomes part of a document only in the page's sandboxed
// frames, which run no scripts.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"font-src 'none'; frame-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " +
	"require-trusted-types-for 'script'; trusted-types forkd-frame"

// apiPolicy is the Content-Security-Policy of the API's answers. An answer may contain bytes of a
// guest. If a browser shows such an answer as a page, this policy gives the page no rights.
const apiPolicy = "default-src 'none'; frame-ancestors 'none'; sandbox"

// security has the headers of every answer.
var security = map[string]string{
	"Content-Security-Policy":      policy,
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
	"Referrer-Policy":              "no-referrer",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Permissions-Policy":           "camera=(), geolocation=(), microphone=()",
	"Cache-Control":                "no-store",
}

func secure(h http.Header) {
	for name, value := range security {
		h.Set(name, value)
	}
}

var (
	errOrigin = errors.New("the request comes from a page of another origin")
	errHeader = errors.New("a request that changes something needs the header " + Header)
	errFrame  = errors.New("the view cannot be a part of another page")
)

// checkSource refuses requests that a browser sends for pages of other origins. The session's
// cookie alone does not prove the origin: ports do not separate cookies, so a page of a guest's
// server at another port of 127.0.0.1 belongs to the same site. The parameter own is the view's own
// origin.
func checkSource(r *http.Request, own string) error {
	safe := r.Method == http.MethodGet || r.Method == http.MethodHead
	upgrade := r.Header.Get("Upgrade") != ""
	origin := r.Header.Get("Origin")
	if origin != "" && origin != own {
		return errOrigin
	}
	switch dest := r.Header.Get("Sec-Fetch-Dest"); dest {
	case "frame", "iframe", "embed", "object":
		return errFrame
	case "document": // a link or a bookmark; the page with the link does not see the answer
		if safe && !upgrade {
			return nil
		}
	}
	// Browsers send Sec-Fetch-Site with every request over TLS or to a loopback address.
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		return errOrigin
	}
	switch {
	case upgrade && origin == "": // a browser's WebSocket always has an Origin, and cannot have the header Header
		return errOrigin
	case !safe && origin == "":
		return errOrigin
	case !safe && r.Header.Get(Header) == "":
		return errHeader
	}
	return nil
}
