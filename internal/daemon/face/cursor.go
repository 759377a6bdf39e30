package face

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/host/byage"
	"github.com/forkd/forkd/internal/host/invalid"
)

// maxPage is the maximum number of members on a page of a list.
const maxPage = 10000

// maxCursor is the maximum length of a cursor.
const maxCursor = 512

// Cursor returns the cursor of the part of a list that follows the member with the given key.
func Cursor(key string) string { return base64.RawURLEncoding.EncodeToString([]byte(key)) }

// KeyOfCursor returns the key in a cursor.
func KeyOfCursor(cursor string) (string, error) {
	key, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(cursor) > maxCursor {
		return "", wrongCursor(cursor)
	}
	return string(key), nil
}

// Limit returns the maximum number of members on a page of a list, from the query of its request. It
// returns 0 if the query asks for the whole list.
func Limit(q url.Values) (int, error) {
	if !q.Has("limit") {
		return 0, nil
	}
	text := q.Get("limit")
	limit, err := strconv.Atoi(text)
	if err != nil || limit < 1 || limit > maxPage {
		return 0, invalid.Errorf("limit", "%.100q: want 1 to %d", text, maxPage)
	}
	return limit, nil
}

// PlaceOfCursor returns the place that a cursor names in the list of sandboxes. The key in such a
// cursor is a SandboxKey. An empty cursor is the beginning of the list.
func PlaceOfCursor(cursor string) (p byage.Place, err error) {
	if cursor == "" {
		return p, nil
	}
	key, err := KeyOfCursor(cursor)
	if err != nil {
		return p, err
	}
	text, id, ok := strings.Cut(key, " ")
	nanos, err := strconv.ParseInt(text, 10, 64)
	if !ok || err != nil {
		return p, wrongCursor(cursor)
	}
	return byage.Place{Created: time.Unix(0, nanos), ID: id}, nil
}

func wrongCursor(cursor string) error {
	return invalid.Errorf("cursor", "%.100q: want a cursor from the Link header of an earlier answer", cursor)
}

// SandboxKey returns the key of a sandbox in a list, which is sorted by keys: oldest first.
func SandboxKey(created time.Time, id string) string {
	return fmt.Sprintf("%020d %s", created.UnixNano(), id)
}
