package face

import (
	"bytes"
	"encoding/json"
	"net/http"
)

// arrayPart is the size of one write of an array, in bytes. A larger element is written as a whole.
const arrayPart = 32 << 10

// WriteArray answers with a JSON array that has the description of each of the members. It holds
// only a part of the array in memory, because the description of one sandbox can have 100 KiB and
// many clients may request lists at once.
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
			panic(http.ErrAbortHandler) // abort, so that the client does not mistake a part for the whole list
		} else if err != nil {
			return err
		}
		part.Truncate(part.Len() - 1) // without the line feed that Encode adds
		if part.Len() >= arrayPart && send() != nil {
			return nil // the client has left
		}
	}
	part.WriteString("]\n")
	_ = send() // fails only if the client has left
	return nil
}
