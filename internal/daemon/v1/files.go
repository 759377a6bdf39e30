package v1

import (
	"context"
	"io"
	"net/http"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/invalid"
)

// fileQuery returns the path and user that a files request names.
func fileQuery(r *http.Request) (path, user string, err error) {
	q := r.URL.Query()
	if path = q.Get("path"); path == "" {
		return "", "", invalid.Errorf("path", "the query parameter is missing")
	}
	return path, q.Get("username"), nil
}

// started notes whether a response has begun: after that an error can only cut it off.
type started struct {
	http.ResponseWriter
	begun bool
}

func (s *started) Write(p []byte) (int, error) {
	s.begun = true
	return s.ResponseWriter.Write(p)
}

func (a *api) readFile(w http.ResponseWriter, r *http.Request) error {
	path, user, err := fileQuery(r)
	if err != nil {
		return err
	}
	out := &started{ResponseWriter: w}
	w.Header().Set("Content-Type", "application/octet-stream")
	move := newTransfer(r.Context(), w, a.Limits.Stall)
	err = a.onGuest(move.ctx, r, "read a file of", func(ctx context.Context, guest *agentclient.Client) error {
		content, err := guest.ReadFile(ctx, path, user)
		if err != nil {
			return err
		}
		defer content.Close()
		_, err = io.Copy(toClient{move, out}, content)
		return err
	})
	err = move.end(err)
	if err != nil && out.begun {
		a.Log.Warn("file transfer broke off", "sandbox", r.PathValue("id"), "error", err)
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	}
	return err
}

func (a *api) writeFile(w http.ResponseWriter, r *http.Request) error {
	path, user, err := fileQuery(r)
	if err != nil {
		return err
	}
	body := http.MaxBytesReader(w, r.Body, maxUpload)
	move := newTransfer(r.Context(), w, a.Limits.Stall)
	err = a.onGuest(move.ctx, r, "write a file of", func(ctx context.Context, guest *agentclient.Client) error {
		return guest.WriteFile(ctx, path, user, fromClient{move, body})
	})
	if err := move.end(err); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
