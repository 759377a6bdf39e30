package v1

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/invalid"
)

// Bounds on the query of a list.
const (
	maxPage   = 10000
	maxCursor = 512 // bytes
)

func selectorOf(r *http.Request) (face.Selector, error) {
	s := face.Selector(r.URL.Query()["label"])
	return s, s.Check("label")
}

// list is a list that is sorted by the keys of its members. It describes each member only when it
// writes the member, because all descriptions together would take much memory.
type list[M, T any] struct {
	members  []M
	key      func(M) string
	describe func(M) T
}

// write answers with a list, or with the page that the query selects by limit and cursor. If there
// is another page, a Link header with the relation next has its address (RFC 8288). The cursor is
// the key of the last member on this page, so it stays valid when members are added or removed.
func (l list[M, T]) write(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	if text := q.Get("cursor"); text != "" {
		after, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil || len(text) > maxCursor {
			return invalid.Errorf("cursor", "%.100q: want one that a Link of an earlier answer has", text)
		}
		i, found := slices.BinarySearchFunc(l.members, string(after), func(m M, k string) int {
			return strings.Compare(l.key(m), k)
		})
		if found {
			i++
		}
		l.members = l.members[i:]
	}
	if q.Has("limit") {
		text := q.Get("limit")
		limit, err := strconv.Atoi(text)
		if err != nil || limit < 1 || limit > maxPage {
			return invalid.Errorf("limit", "%.100q: want 1 to %d", text, maxPage)
		}
		if len(l.members) > limit {
			l.members = l.members[:limit]
			q.Set("cursor", base64.RawURLEncoding.EncodeToString([]byte(l.key(l.members[limit-1]))))
			w.Header().Set("Link", "<"+r.URL.Path+"?"+q.Encode()+`>; rel="next"`)
		}
	}
	return face.WriteArray(w, l.members, l.describe)
}
