package e2b

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/volfiles"
	"github.com/forkd/forkd/internal/proto/filesproto"
)

// contentRoot is the beginning of the paths of E2B's API for the files of volumes.
const contentRoot = "volumecontent"

// noContentToken is reported as the token for the files of a volume, because the SDKs require a
// token. It is for clients that need no token, and for clients that may not use the files.
const noContentToken = "none"

// A token for the files of a volume consists of contentPrefix, a signature of the volume's ID and
// of the client, a dot, and the client in base64. It gives the rights that the client has at the
// time of the request, for this volume only.
const (
	contentPrefix  = "fv_"
	contentPurpose = "e2b volume"
)

// isContent reports whether a path belongs to E2B's API for the files of volumes.
func isContent(path string) bool { return isBelow(path, contentRoot) }

// contentToken returns the token of a client for the files of the volume with the given ID.
func (a *Server) contentToken(who auth.Principal, id string) string {
	if who.Need(auth.Run) != nil {
		return noContentToken
	}
	if _, ok := a.Face.Guard.Current(who.Who); !ok {
		return noContentToken // the client's connection identifies it
	}
	return contentPrefix + a.Keys.Token(contentPurpose, id+"/"+who.Who) + "." +
		base64.RawURLEncoding.EncodeToString([]byte(who.Who))
}

// identifyContent returns the principal of a request for files of a volume. A token of contentToken
// identifies its client. Without such a token, the request is identified like all other requests.
func (a *Server) identifyContent(r *http.Request) (auth.Principal, error) {
	token, isContent := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "+contentPrefix)
	if !isContent {
		return a.identify(r)
	}
	if err := a.Face.CheckOrigin(r, a.hosts...); err != nil {
		return auth.Principal{}, err
	}
	signature, encoded, _ := strings.Cut(token, ".")
	id, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"+contentRoot+"/"), "/")
	who, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil || !a.Keys.Is(contentPurpose, id+"/"+string(who), signature) {
		return auth.Principal{}, face.NewError(http.StatusUnauthorized,
			"the token of the volume is wrong: get the volume again")
	}
	p, ok := a.Face.Guard.Current(string(who))
	if !ok {
		return auth.Principal{}, face.NewError(http.StatusUnauthorized, "the token that this volume was found with is gone")
	}
	auth.Identified(r.Context(), p.Who)
	return p, nil
}

// contentFields are the parameters of requests for files.
var contentFields = []string{"path", "depth", "uid", "gid", "mode", "force"}

// maxContentPath is the maximum length of a path in a request, in bytes: PATH_MAX.
const maxContentPath = 4096

// content serves a request for files of a volume.
func (a *Server) content(w http.ResponseWriter, r *http.Request) error {
	view := a.view(r)
	i, err := view.VolumeWithID(r.PathValue("volume"))
	if err != nil {
		return err
	}
	given, q := r.URL.Query(), url.Values{}
	for _, field := range contentFields {
		if given.Has(field) {
			q.Set(field, given.Get(field))
		}
	}
	switch name := q.Get("path"); {
	case r.Method == http.MethodHead:
		return face.NewError(http.StatusMethodNotAllowed, "HEAD: there is no such request")
	case name == "":
		return face.BadRequest("path: empty: want the path of a file or directory in the volume")
	case len(name) > maxContentPath:
		return face.BadRequest("path: %d bytes: want at most %d", len(name), maxContentPath)
	}
	if r.Method == http.MethodGet && r.ContentLength != 0 {
		return face.Sending(face.BadRequest("body: a request to read has none"))
	}
	body := newSteady(r.Body, http.NewResponseController(w), r.ContentLength, time.Now().Add(uploadTimeout))
	defer body.stop() // before the handler ends, because w must not be used afterwards
	begun := false
	err = a.Files.Serve(r.Context(), volfiles.Request{Volume: i.Name, ID: i.ID, Client: auth.From(r.Context()).Who,
		Boot: bootable(view.Snapshots()), Method: r.Method, Path: "/" + path.Base(r.URL.Path), Query: q.Encode(),
		Body: body, Length: r.ContentLength,
	}, func(answer volfiles.Answer) error {
		begun = true
		if !body.stop() && r.ContentLength != 0 { // only a hostile VM answers so early
			face.LetGo(w)
		}
		return a.sendContent(w, r, answer)
	})
	switch {
	case begun && err != nil:
		panic(http.ErrAbortHandler) // the client must not take a part of a file for the whole file
	case errors.As(err, new(*volfiles.NoKernelError)):
		return face.NewError(http.StatusConflict, err.Error())
	case errors.As(err, new(*volfiles.BodyError)):
		return face.Sending(bodyError(err, body))
	case err != nil && r.ContentLength != 0:
		return face.Sending(err)
	}
	return err
}

// bodyError says why the body of a request could not be read.
func bodyError(err error, body *steady) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return face.NewError(http.StatusRequestTimeout, fmt.Sprintf("the body comes too slowly: want %d KiB in %v",
			body.least>>10, uploadStall))
	}
	return face.BadRequest("the body breaks off before its end")
}

// sendContent sends an answer. The client has as much time to read it as the whole request has, but
// must not stall.
func (a *Server) sendContent(w http.ResponseWriter, r *http.Request, answer volfiles.Answer) error {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	if answer.Status != http.StatusNoContent {
		h.Set("Content-Length", strconv.FormatInt(answer.Length, 10))
		h.Set("Content-Type", answer.Type())
	}
	w.WriteHeader(answer.Status)
	to := io.Writer(w)
	if answer.File {
		t := face.NewTransfer(r.Context(), w, a.Face.Limits.Stall)
		defer t.End(nil)
		to = t.To(w)
	}
	n, err := io.Copy(to, io.LimitReader(answer.Body, answer.Length))
	if err == nil && n < answer.Length {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// maxBootable is the maximum number of snapshots whose kernels are tried.
const maxBootable = 8

// bootable returns the newest usable snapshots.
func bootable(list []store.Info) []store.Info {
	list = slices.DeleteFunc(slices.Clone(list), func(i store.Info) bool {
		return i.Damage != "" || i.Writing || i.Arriving || i.Boot == nil
	})
	slices.SortFunc(list, func(a, b store.Info) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.Tag, b.Tag))
	})
	return list[:min(len(list), maxBootable)]
}

// writeContentError sends an error in the form of E2B's API for files, in which the code is a string.
func writeContentError(w http.ResponseWriter, err error) {
	body := bodyOf(err)
	code := strings.ReplaceAll(strings.ToLower(http.StatusText(body.Code)), " ", "_")
	writeErrorBody(w, body.Code, filesproto.Error{Code: code, Message: body.Message})
}
