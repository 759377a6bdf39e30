package v1

import (
	"net/http"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
)

// get returns a handler that answers with f's result as JSON, with status 200. It reads no body.
func get[Res any](f func(*http.Request) (Res, error)) face.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		res, err := f(r)
		if err != nil {
			return err
		}
		return face.WriteJSON(w, r, http.StatusOK, res)
	}
}

// listed is like get, but for a list. The query may select a page of the list.
func listed[M, T any](f func(*http.Request) (list[M, T], error)) face.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		// A daemon's list is always complete. Only routers use the parameter partial.
		if _, err := boolQuery(r, "partial"); err != nil {
			return err
		}
		l, err := f(r)
		if err != nil {
			return err
		}
		return l.write(w, r)
	}
}

// described returns a function for the result and the error of an operation. This function converts
// the result by calling describe, and returns the error unchanged.
func described[M, T any](describe func(M) T) func(M, error) (T, error) {
	return func(m M, err error) (t T, _ error) {
		if err != nil {
			return t, err
		}
		return describe(m), nil
	}
}

// end returns a handler that calls f and answers with status 204. It reads no body.
func end(f func(*http.Request) error) face.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if err := f(r); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
}

// call returns a handler that decodes the request's JSON body for f, and answers with f's result as
// JSON with the given status.
func call[Req, Res any](status int, f func(*http.Request, *Req) (Res, error)) face.Handler {
	var defaults Req
	return callWith(defaults, status, f)
}

// callWith is like call, but omitted fields of the body take the given defaults.
func callWith[Req, Res any](defaults Req, status int, f func(*http.Request, *Req) (Res, error)) face.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		req := defaults
		if err := face.ReadJSON(w, r, &req); err != nil {
			return err
		}
		res, err := f(r, &req)
		if err != nil {
			return err
		}
		return face.WriteJSON(w, r, status, res)
	}
}

// tell is like call, but for a function without a result. The answer has status 204.
func tell[Req any](f func(*http.Request, *Req) error) face.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		var req Req
		if err := face.ReadJSON(w, r, &req); err != nil {
			return err
		}
		return end(func(r *http.Request) error { return f(r, &req) })(w, r)
	}
}

// millis returns a duration in milliseconds with three decimals.
func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
