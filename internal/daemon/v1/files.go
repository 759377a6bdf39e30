package v1

import (
	"context"
	"io"
	"net/http"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/invalid"
)

// fileQuery returns the path and the user in a request's query.
func fileQuery(r *http.Request) (path, user string, err error) {
	q := r.URL.Query()
	if path = q.Get("path"); path == "" {
		return "", "", invalid.Errorf("path", "the query parameter is missing")
	}
	return path, q.Get("username"), nil
}

// started records whether an answer has begun. After that, an error can only cut the answer off.
type started struct {
	http.ResponseWriter
	begun bool
}

func (s *started) Write(p []byte) (int, error) {
	s.begun = true
	return s.ResponseWriter.Write(p)
}

func (a *api) readFile(w http.ResponseWriter, r *http.Request) error {
	return a.download(w, r, "application/octet-stream", "read a file of", (*agentclient.Client).ReadFile)
}

// readTree answers with a directory as a tar archive. The guest makes the archive.
func (a *api) readTree(w http.ResponseWriter, r *http.Request) error {
	return a.download(w, r, apiv1.Tar, "read a directory of", (*agentclient.Client).ReadTree)
}

// download answers with content from the guest. To open this content, it calls open.
func (a *api) download(w http.ResponseWriter, r *http.Request, contentType, op string,
	open func(_ *agentclient.Client, _ context.Context, path, user string) (io.ReadCloser, error)) error {
	path, user, err := fileQuery(r)
	if err != nil {
		return err
	}
	out := &started{ResponseWriter: w}
	w.Header().Set("Content-Type", contentType)
	move := face.NewTransfer(r.Context(), w, a.Face.Limits.Stall)
	err = a.onGuest(move.Context(), r, op, func(ctx context.Context, guest *agentclient.Client) error {
		content, err := open(guest, ctx, path, user)
		if err != nil {
			return err
		}
		defer content.Close()
		_, err = io.Copy(move.To(out), content)
		return err
	})
	err = move.End(err)
	if err != nil && out.begun {
		a.Face.Abort(r, err)
	}
	return err
}

func (a *api) writeFile(w http.ResponseWriter, r *http.Request) error {
	return a.upload(w, r, maxUpload, "write a file of", (*agentclient.Client).WriteFile)
}

// writeTree lets the guest unpack a tar archive into a directory.
func (a *api) writeTree(w http.ResponseWriter, r *http.Request) error {
	return a.upload(w, r, maxArchive, "write a directory of", (*agentclient.Client).WriteTree)
}

// upload passes the body, which may have up to limit bytes, to the guest.
func (a *api) upload(w http.ResponseWriter, r *http.Request, limit int64, op string,
	write func(_ *agentclient.Client, _ context.Context, path, user string, content io.Reader) error) error {
	path, user, err := fileQuery(r)
	if err != nil {
		return err
	}
	body := http.MaxBytesReader(w, r.Body, limit)
	move := face.NewTransfer(r.Context(), w, a.Face.Limits.Stall)
	err = a.onGuest(move.Context(), r, op, func(ctx context.Context, guest *agentclient.Client) error {
		return write(guest, ctx, path, user, move.From(body))
	})
	if err := move.End(err); err != nil {
		return face.Sending(err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
