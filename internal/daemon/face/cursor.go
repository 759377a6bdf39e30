package face

import (
	"encoding/base64"
	"fmt"
	"time"

	"github.com/forkd/forkd/internal/host/invalid"
)

// maxCursor is the maximum length of a cursor.
const maxCursor = 512

// Cursor returns the cursor of the part of a list that follows the member with the given key.
func Cursor(key string) string { return base64.RawURLEncoding.EncodeToString([]byte(key)) }

// KeyOfCursor returns the key in a cursor.
func KeyOfCursor(cursor string) (string, error) {
	key, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(cursor) > maxCursor {
		return "", invalid.Errorf("cursor", "%.100q: want one that a Link of an earlier answer has", cursor)
	}
	return string(key), nil
}

// SandboxKey returns the key of a sandbox in a list, which is sorted by keys: oldest first.
func SandboxKey(created time.Time, id string) string {
	return fmt.Sprintf("%020d %s", created.UnixNano(), id)
}
