package v1

import (
	"io"
	"net/http"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// export compares two snapshots or sandboxes, and answers with a tar archive of the files that
// differ. The comparison happens first, so its errors determine the HTTP status.
func (a *api) export(w http.ResponseWriter, r *http.Request) error {
	var req apiv1.ExportRequest
	if err := face.ReadJSON(w, r, &req); err != nil {
		return err
	}
	ask, err := diffRequest(&apiv1.DiffRequest{From: req.From, To: req.To, Path: req.Path})
	if err != nil {
		return err
	}
	ask.Partial = req.Partial
	out := &started{ResponseWriter: w}
	var move *face.Transfer
	err = a.view(r).Export(r.Context(), a.Differ, ask, func(from string) io.Writer {
		e := audit.From(r.Context())
		if e.From = from; vmpool.IsID(req.To) {
			e.Sandbox = req.To
		}
		w.Header().Set("Content-Type", apiv1.Tar)
		move = face.NewTransfer(r.Context(), w, a.Face.Limits.Stall)
		return move.To(out)
	})
	if move != nil {
		err = move.End(err)
	}
	if err != nil && out.begun {
		a.Face.Abort(r, err)
	}
	return orTooMany(err)
}
