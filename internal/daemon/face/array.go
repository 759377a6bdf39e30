package face

import (
	"bytes"
	"encoding/json"
	"net/http"
)

// arrayPart is how many bytes of an array are written at once, unless a member has more.
const arrayPart = 32 << 10

// WriteArray answers with a JSON array of the descriptions of members. Of these it holds no more than
// one part at a time: labels, metadata and what guests say of themselves can be 100 KiB of each
// sandbox, and many clients may ask for lists at once.
func WriteArray[M, T any](w http.ResponseWriter, members []M, describe func(M) T) error {
	var part bytes.Buffer
	enc := json.NewEncoder(&part)
	enc.SetEscapeHTML(false) // see WriteJSON
	begun := false
	send := func() error {
		if !begun {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusOK)
			begun = true
		}
		_, err := w.Write(part.Bytes())
		part.Reset()
		return err
	}
	part.WriteByte('[')
	for n, m := range members {
		if n > 0 {
			part.WriteByte(',')
		}
		if err := enc.Encode(describe(m)); err != nil && begun {
			panic(http.ErrAbortHandler) // the client must not take a part for the whole
		} else if err != nil {
			return err
		}
		part.Truncate(part.Len() - 1) // Encode ends a line
		if part.Len() >= arrayPart && send() != nil {
			return nil // the client has gone
		}
	}
	part.WriteString("]\n")
	_ = send() // the client has gone if this fails
	return nil
}
