package v1

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/invalid"
)

// readJSON decodes a request body strictly into v, which holds the defaults. An empty body leaves v
// as it is, but does not say what a PUT or a PATCH is to change.
func readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	return readLongJSON(w, r, v, maxBody)
}

// bodyTimeout is how long a client may take to send a JSON body.
const bodyTimeout = time.Minute

// readLongJSON is readJSON of a body of at most limit bytes.
func readLongJSON(w http.ResponseWriter, r *http.Request, v any, limit int64) error {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout)) // a connection without deadlines is a test's
	defer rc.SetReadDeadline(time.Time{})
	body := face.ShareOf(r).Body(http.MaxBytesReader(w, r.Body, limit))
	err := strictJSON(body, v, "request body", r.Method == http.MethodPatch)
	if !errors.Is(err, io.EOF) {
		return err
	}
	if r.Method == http.MethodPut || r.Method == http.MethodPatch {
		return face.BadRequest("request body: missing")
	}
	return nil
}

// strictJSON decodes one JSON object, which errors call what. With nulls, null stands for what is
// to be taken away. It returns io.EOF if there is not a single byte.
func strictJSON(r io.Reader, v any, what string, nulls bool) error {
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
		return face.BadRequest("%s: white space without a JSON object", what)
	case errors.Is(err, io.EOF):
		return io.EOF
	case errors.As(err, &tooLarge), errors.Is(err, face.ErrNoMemory):
		return err
	case errors.As(err, &wrong):
		return invalid.Errorf(cmp.Or(wrong.Field, "the "+what), "got %s, want %s", article(wrong.Value), jsonType(wrong.Type))
	case err != nil && strings.HasPrefix(err.Error(), unknownField):
		name := strings.Trim(strings.TrimPrefix(err.Error(), unknownField), `"`)
		return invalid.Errorf(name, "there is no such field in this request")
	case err != nil:
		return face.BadRequest("%s: %s", what, strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return face.BadRequest("%s: something follows the JSON object", what)
	}
	c := textCheck{json.NewDecoder(&raw), what, nulls}
	return c.value("")
}

// article puts the article before a word of encoding/json for a kind of value.
func article(kind string) string {
	switch kind {
	case "array", "object":
		return "an " + kind
	case "bool":
		return "true or false"
	}
	return "a " + kind // string; number, perhaps with its digits
}

// unknownField begins the error of encoding/json for a field that a message does not have; there is
// no type for it.
const unknownField = "json: unknown field "

// jsonType is a Go type in the words of JSON.
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

func writeJSON(w http.ResponseWriter, status int, v any) error {
	var p bytes.Buffer
	enc := json.NewEncoder(&p)
	enc.SetEscapeHTML(false) // no page has it, and a '<' of a guest's would take six bytes
	if err := enc.Encode(v); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(p.Len()))
	w.WriteHeader(status)
	_, _ = w.Write(p.Bytes()) // the client has gone if this fails
	return nil
}

// seconds converts a field in seconds, which must lie between 0 and limit; 0 means def.
func seconds(field string, v float64, def, limit time.Duration) (time.Duration, error) {
	if v < 0 || v > limit.Seconds() {
		return 0, invalid.Errorf(field, "%g: want 0 to %g", v, limit.Seconds())
	}
	if v == 0 {
		return def, nil
	}
	return time.Duration(v * float64(time.Second)), nil
}

// millis is a duration in milliseconds with three decimals.
func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
