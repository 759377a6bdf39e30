package docker

import (
	"context"
	"net/http"
	"net/url"
	"regexp"
	"strconv"

	"github.com/forkd/forkd/internal/daemon/face"
)

// The versions of the API that clients may request, as minor numbers of version 1. Clients ask for
// the highest version first, and use it or a lower version.
const (
	minVersion = 41 // version of the client in Debian 12
	maxVersion = 47
)

// multiplexed is the first version in which the type of an answer says whether its output is
// multiplexed.
const multiplexed = 42

func apiVersion(minor int) string { return "1." + strconv.Itoa(minor) }

// describe sets the headers that all answers have.
func describe(h http.Header) {
	h.Set("Api-Version", apiVersion(maxVersion))
	h.Set("Docker-Experimental", "false")
	h.Set("Ostype", "linux")
}

type versionKey struct{}

var versionPath = regexp.MustCompile(`^/v(\d{1,3})\.(\d{1,3})(/.*)$`)

// versioned removes the version from the path of a request, and puts it into the request's context.
// A request without a version uses the highest version.
func versioned(r *http.Request) (*http.Request, error) {
	m := versionPath.FindStringSubmatch(r.URL.Path)
	if m == nil {
		return r, nil
	}
	asked := m[1] + "." + m[2]
	minor, _ := strconv.Atoi(m[2]) // the expression permits only digits
	switch {
	case m[1] != "1" || minor > maxVersion:
		return r, face.BadRequest("client version %s is too new. Maximum supported API version is %s", asked,
			apiVersion(maxVersion))
	case minor < minVersion:
		return r, face.BadRequest("client version %s is too old. Minimum supported API version is %s, "+
			"please upgrade your client to a newer version", asked, apiVersion(minVersion))
	}
	r = r.Clone(context.WithValue(r.Context(), versionKey{}, minor))
	r.URL = &url.URL{Path: m[3], RawQuery: r.URL.RawQuery}
	return r, nil
}

// versionOf returns the minor number of a request's version.
func versionOf(r *http.Request) int {
	if minor, ok := r.Context().Value(versionKey{}).(int); ok {
		return minor
	}
	return maxVersion
}

// boolQuery returns the value of a query parameter as Docker reads it: a missing parameter is false.
func boolQuery(r *http.Request, name string) bool {
	switch r.URL.Query().Get(name) {
	case "", "0", "no", "false", "none", "False":
		return false
	}
	return true
}

// intQuery returns the number in a query parameter, or def if the parameter is missing.
func intQuery(r *http.Request, name string, def, least, most int) (int, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return def, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, face.BadRequest("%s: %.100q: want a number from %d to %d", name, text, least, most)
	}
	return n, nil
}
