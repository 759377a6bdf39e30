package face

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/once"
	"github.com/forkd/forkd/internal/host/invalid"
)

// ReadJSON decodes a request body strictly into v. The caller sets v to the defaults of the fields.
// An empty body leaves v unchanged, but is an error in a PUT or a PATCH.
func ReadJSON(w http.ResponseWriter, r *http.Request, v any) error {
	return ReadLongJSON(w, r, v, MaxBody)
}

// MaxBody bounds a JSON body, in bytes.
const MaxBody = 2 << 20

// BodyTimeout limits the time in which a client may send a body, if the daemon reads the whole body
// before it acts.
const BodyTimeout = time.Minute

// bodyOf returns a reader of a request's body. Reading fails after limit bytes, after BodyTimeout,
// or if the request's share of memory is used up. The caller calls the returned function after
// reading.
func bodyOf(w http.ResponseWriter, r *http.Request, limit int64) (body io.Reader, done func()) {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(BodyTimeout)) // connections of some tests have no deadlines
	return ShareOf(r).Body(http.MaxBytesReader(w, r.Body, limit)), func() { _ = rc.SetReadDeadline(time.Time{}) }
}

// ReadBody reads a body of at most limit bytes.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	body, done := bodyOf(w, r, limit)
	defer done()
	return io.ReadAll(body)
}

// ReadLongJSON is like ReadJSON, but accepts a body of at most limit bytes.
func ReadLongJSON(w http.ResponseWriter, r *http.Request, v any, limit int64) error {
	body, done := bodyOf(w, r, limit)
	defer done()
	err := StrictJSON(body, v, "request body", r.Method == http.MethodPatch)
	if !errors.Is(err, io.EOF) {
		return err
	}
	if r.Method == http.MethodPut || r.Method == http.MethodPatch {
		return BadRequest("request body: missing")
	}
	return nil
}

// StrictJSON decodes one JSON object into v. In errors, the object is called by the given name
// (what). If nulls is true, a value may be null, which marks an entry to remove. StrictJSON returns
// io.EOF for empty input.
func StrictJSON(r io.Reader, v any, what string, nulls bool) error {
	var raw bytes.Buffer
	dec := json.NewDecoder(io.TeeReader(r, &raw))
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	var (
		tooLarge *http.MaxBytesError
		wrong    *json.UnmarshalTypeError
	)
	switch {
	case errors.Is(err, io.EOF) && raw.Len() > 0:
		return BadRequest("%s: white space without a JSON object", what)
	case errors.Is(err, io.EOF):
		return io.EOF
	case errors.As(err, &tooLarge), errors.Is(err, ErrNoMemory):
		return err
	case errors.As(err, &wrong):
		return invalid.Errorf(cmp.Or(wrong.Field, "the "+what), "got %s, want %s", article(wrong.Value), jsonType(wrong.Type))
	case err != nil && strings.HasPrefix(err.Error(), unknownField):
		name := strings.Trim(strings.TrimPrefix(err.Error(), unknownField), `"`)
		return invalid.Errorf(name, "there is no such field in this request")
	case err != nil:
		return BadRequest("%s: %s", what, strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return BadRequest("%s: something follows the JSON object", what)
	}
	c := textCheck{json.NewDecoder(&raw), what, nulls}
	return c.value("")
}

// article puts "a" or "an" before a kind of value. The kind is in the words of encoding/json.
func article(kind string) string {
	switch kind {
	case "array", "object":
		return "an " + kind
	case "bool":
		return "true or false"
	}
	return "a " + kind // "string", or "number" and perhaps the digits
}

// unknownField is the beginning of encoding/json's error for an unknown field. The error has no
// type of its own, so its text is compared.
const unknownField = "json: unknown field "

// jsonType returns the name of a Go type in the terms of JSON.
func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "an integer"
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		return "an integer from 0"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "base64 text"
		}
		return "an array"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return "text"
}

// WriteJSON answers with v as JSON. A large answer counts against the request's share of memory
// until the client has received it. If the share is used up, the error says that the request was
// carried out.
func WriteJSON(w http.ResponseWriter, r *http.Request, status int, v any) error {
	var p bytes.Buffer
	enc := json.NewEncoder(&p)
	enc.SetEscapeHTML(false) // the answer is not embedded in HTML, and escaping would turn a guest's '<' into six bytes
	if err := enc.Encode(v); err != nil {
		return err
	}
	if p.Len() > smallShare {
		if err := ShareOf(r).Take(p.Len()); err != nil {
			return fmt.Errorf("%w: %w", once.ErrUnanswered, err)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(p.Len()))
	w.WriteHeader(status)
	_, _ = w.Write(p.Bytes()) // fails only if the client has left
	return nil
}

// Seconds converts the value of a field in seconds, which must lie between 0 and limit. For 0 it
// returns def.
func Seconds(field string, v float64, def, limit time.Duration) (time.Duration, error) {
	if v < 0 || v > limit.Seconds() {
		return 0, invalid.Errorf(field, "%g: want 0 to %g", v, limit.Seconds())
	}
	if v == 0 {
		return def, nil
	}
	return time.Duration(v * float64(time.Second)), nil
}
