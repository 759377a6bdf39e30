package v1

import (
	"net/http"
	"slices"
	"strings"

	"github.com/forkd/forkd/internal/daemon/face"
)

func selectorOf(r *http.Request) (face.Selector, error) {
	s := face.Selector(r.URL.Query()["label"])
	return s, s.Check("label")
}

// list is a list that is sorted by the keys of its members. If the query asks for a page, the
// members before the page may be missing from the list. The members after the page may also be
// missing, except the first of them, which shows that there is another page. The list describes
// each member only when the member is written, because all descriptions together would take much
// memory.
type list[M, T any] struct {
	members  []M
	key      func(M) string
	describe func(M) T
}

// write answers with a list, or with the page that the query selects by limit and cursor. If there
// is another page, a Link header with the relation "next" contains the address of that page (RFC
// 8288). The cursor is the key of the last member on this page, so it stays valid when members are
// added or removed.
func (l list[M, T]) write(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	if text := q.Get("cursor"); text != "" {
		after, err := face.KeyOfCursor(text)
		if err != nil {
			return err
		}
		i, found := slices.BinarySearchFunc(l.members, after, func(m M, k string) int {
			return strings.Compare(l.key(m), k)
		})
		if found {
			i++
		}
		l.members = l.members[i:]
	}
	limit, err := face.Limit(q)
	if err != nil {
		return err
	}
	if limit > 0 && len(l.members) > limit {
		l.members = l.members[:limit]
		q.Set("cursor", face.Cursor(l.key(l.members[limit-1])))
		w.Header().Set("Link", "<"+r.URL.Path+"?"+q.Encode()+`>; rel="next"`)
	}
	return face.WriteArray(w, l.members, l.describe)
}
