package ocihttp

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/hub"
	"github.com/forkd/forkd/internal/sigstore"
)

// Bounds on the uploads of signatures.
const (
	maxUpload  = max(sigstore.MaxBundle, hub.MaxSignatureManifest) // bytes of a blob or of a manifest
	maxUploads = 64                                                // uploads in memory; a new upload replaces the oldest
)

// uploads holds the blobs of signatures until the manifest of the signature arrives.
type uploads struct {
	mu   sync.Mutex
	list []upload // oldest first
}

// upload is an unfinished or a complete blob.
type upload struct {
	key  string
	data []byte
}

// put replaces or adds an upload.
func (u *uploads) put(key string, data []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.removeLocked(key)
	if len(u.list) == maxUploads {
		u.list = slices.Delete(u.list, 0, 1)
	}
	u.list = append(u.list, upload{key, data})
}

// get returns an upload. The caller must not change the result.
func (u *uploads) get(key string) (data []byte, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if i := u.indexLocked(key); i >= 0 {
		return u.list[i].data, true
	}
	return nil, false
}

func (u *uploads) remove(key string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.removeLocked(key)
}

func (u *uploads) removeLocked(key string) {
	if i := u.indexLocked(key); i >= 0 {
		u.list = slices.Delete(u.list, i, i+1)
	}
}

func (u *uploads) indexLocked(key string) int {
	return slices.IndexFunc(u.list, func(other upload) bool { return other.key == key })
}

// unfinished and complete return the keys of uploads.
func unfinished(tag, id string) string            { return "upload " + tag + " " + id }
func complete(tag string, d digest.Digest) string { return "blob " + tag + " " + d.String() }

// Errors of uploads.
var (
	errOnlySignatures = errors.New("a daemon accepts only signatures: push snapshots to a registry, or pull with the " +
		"other daemon")
	errNoUpload = errors.New("there is no such upload")
	errDigest   = errors.New("the content differs from its digest")
)

// begin begins an upload.
func (s *Server) begin(w http.ResponseWriter, r *http.Request) error {
	return s.serve(r, func(_, tag string) error {
		var p [16]byte
		rand.Read(p[:]) // never fails: crypto/rand crashes the process instead
		id := hex.EncodeToString(p[:])
		s.uploads.put(unfinished(tag, id), nil)
		accept(w, "/v2/"+tag+"/blobs/uploads/"+id)
		return nil
	})
}

// accept answers that an upload can go on.
func accept(w http.ResponseWriter, location string) {
	w.Header().Set("Location", location)
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusAccepted)
}

// receive returns the earlier bytes of an upload, followed by the body of a request.
func (s *Server) receive(w http.ResponseWriter, r *http.Request, before []byte) ([]byte, error) {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(s.face.Limits.Stall)) // connections of some tests have no deadlines
	defer rc.SetReadDeadline(time.Time{})
	more, err := io.ReadAll(io.LimitReader(r.Body, maxUpload+1))
	if err != nil {
		return nil, err
	}
	if len(before)+len(more) > maxUpload {
		return nil, face.Sending(errOnlySignatures)
	}
	return slices.Concat(before, more), nil
}

// add adds bytes to an upload.
func (s *Server) add(w http.ResponseWriter, r *http.Request) error {
	return s.serve(r, func(_, tag string) error {
		key := unfinished(tag, r.PathValue("id"))
		before, ok := s.uploads.get(key)
		if !ok {
			return errNoUpload
		}
		data, err := s.receive(w, r, before)
		if err != nil {
			return err
		}
		s.uploads.put(key, data)
		accept(w, r.URL.Path)
		return nil
	})
}

// end ends an upload. The query names the digest of the blob.
func (s *Server) end(w http.ResponseWriter, r *http.Request) error {
	return s.serve(r, func(_, tag string) error {
		key := unfinished(tag, r.PathValue("id"))
		before, ok := s.uploads.get(key)
		if !ok {
			return errNoUpload
		}
		data, err := s.receive(w, r, before)
		if err != nil {
			return err
		}
		d := digest.FromBytes(data)
		if d.String() != r.URL.Query().Get("digest") {
			return errDigest
		}
		s.uploads.remove(key)
		s.uploads.put(complete(tag, d), data)
		created(w, "/v2/"+tag+"/blobs/"+d.String(), d)
		return nil
	})
}

// created() answers that a blob or a manifest has been stored.
func created(w http.ResponseWriter, location string, d digest.Digest) {
	w.Header().Set("Location", location)
	w.Header().Set("Docker-Content-Digest", d.String())
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusCreated)
}

// attach stores a signature of a snapshot. The body is the manifest of the signature.
func (s *Server) attach(w http.ResponseWriter, r *http.Request) error {
	return s.serve(r, func(who, tag string) error {
		manifest, err := s.receive(w, r, nil)
		if err != nil {
			return err
		}
		d := digest.FromBytes(manifest)
		if r.PathValue("reference") != d.String() {
			return errOnlySignatures
		}
		err = s.hub.Attach(r.Context(), who, tag, manifest, func(d digest.Digest) []byte {
			data, _ := s.uploads.get(complete(tag, d)) // nil if there is no such blob
			return data
		})
		if err != nil {
			return err
		}
		created(w, "/v2/"+tag+"/manifests/"+d.String(), d)
		return nil
	})
}
