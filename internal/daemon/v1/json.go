package v1

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"
)

// readJSON decodes a request body strictly into v, which holds the defaults. An empty body leaves v as it is.
func readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	var (
		tooLarge *http.MaxBytesError
		wrong    *json.UnmarshalTypeError
	)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case errors.As(err, &tooLarge):
		return err
	case errors.As(err, &wrong):
		return badRequest("field %q: got a %s, want %s", wrong.Field, wrong.Value, wrong.Type)
	case err != nil:
		return badRequest("request body: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return badRequest("request body: something follows the JSON object")
	}
	return nil
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	p, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(p, '\n')) // the client has gone if this fails
	return nil
}

func writeError(w http.ResponseWriter, status int, msg string) {
	_ = writeJSON(w, status, map[string]string{"error": msg})
}

// seconds converts a field in seconds, which must lie between 0 and limit; 0 means def.
func seconds(field string, v float64, def, limit time.Duration) (time.Duration, error) {
	if v < 0 || v > limit.Seconds() {
		return 0, badRequest("%s: %g: want 0 to %g", field, v, limit.Seconds())
	}
	if v == 0 {
		return def, nil
	}
	return time.Duration(v * float64(time.Second)), nil
}

// millis is a duration in milliseconds with three decimals.
func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
