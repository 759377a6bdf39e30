package docker

import (
	"encoding/json"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
)

// filters has the conditions for entries of a list, by their kind. An entry must satisfy at least
// one condition of each kind. Of the conditions about labels, it must satisfy all.
type filters map[string][]string

// filtersOf returns the filters in the query of a request. Only the given kinds are accepted.
func filtersOf(r *http.Request, kinds ...string) (filters, error) {
	text := r.URL.Query().Get("filters")
	if text == "" {
		return nil, nil
	}
	wanted := filters{}
	if json.Unmarshal([]byte(text), (*map[string][]string)(&wanted)) != nil {
		var sets map[string]map[string]bool // the form of older clients
		if err := decode("filters", []byte(text), &sets); err != nil {
			return nil, err
		}
		for kind, set := range sets {
			for value, on := range set {
				if on {
					wanted[kind] = append(wanted[kind], value)
				}
			}
		}
	}
	for kind := range wanted {
		if !slices.Contains(kinds, kind) {
			return nil, face.BadRequest("filters: %.100q: forkd supports %s", kind, strings.Join(kinds, ", "))
		}
	}
	return wanted, nil
}

// has() reports whether a condition is among the filters.
func (f filters) has(kind, value string) bool { return slices.Contains(f[kind], value) }

// match reports whether the conditions of a kind permit one of the values.
func (f filters) match(kind string, values ...string) bool {
	if len(f[kind]) == 0 {
		return true
	}
	return slices.ContainsFunc(values, func(v string) bool { return f.has(kind, v) })
}

// maxPattern bounds a regular expression of a filter, in bytes.
const maxPattern = 1 << 10

// patterns() returns the conditions of a kind as regular expressions.
func (f filters) patterns(kind string) (list []*regexp.Regexp, err error) {
	for _, text := range f[kind] {
		if len(text) > maxPattern {
			return nil, face.BadRequest("filters: %s has %d bytes: want at most %d", kind, len(text), maxPattern)
		}
		p, err := regexp.Compile(text)
		if err != nil {
			return nil, face.BadRequest("filters: %s: %v", kind, err)
		}
		list = append(list, p)
	}
	return list, nil
}

// named() reports whether one of the patterns matches a name, with or without the slash that Docker
// puts before it. Without patterns, every name matches.
func named(patterns []*regexp.Regexp, name string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool {
		return p.MatchString(name) || p.MatchString("/"+name)
	})
}

// begins() reports whether a value begins with one of the conditions of a kind. Without conditions,
// it returns true.
func (f filters) begins(kind, value string) bool {
	is := func(begin string) bool { return strings.HasPrefix(value, begin) }
	return len(f[kind]) == 0 || slices.ContainsFunc(f[kind], is)
}

// labels() reports whether the conditions about labels, NAME or NAME=VALUE, permit the given
// labels.
func (f filters) labels(have map[string]string) bool {
	for _, want := range f["label"] {
		name, value, both := strings.Cut(want, "=")
		if got, ok := have[name]; !ok || both && got != value {
			return false
		}
	}
	return true
}

// reference reports whether the conditions about names of images permit one of the given names. A
// condition may be a pattern, and may lack the tag.
func (f filters) reference(names []string) bool {
	if len(f["reference"]) == 0 {
		return true
	}
	for _, pattern := range f["reference"] {
		pattern = strings.TrimPrefix(strings.TrimPrefix(pattern, dockerHub), library)
		for _, name := range names {
			repository, _ := split(name)
			for _, text := range []string{name, repository} {
				if ok, err := path.Match(pattern, text); ok && err == nil {
					return true
				}
			}
		}
	}
	return false
}

// docktime writes a time as Docker does. An unset time is the zero time of Go, as in Docker.
func docktime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
