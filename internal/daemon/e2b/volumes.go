package e2b

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/volume"
)

// contentRoot is the beginning of the paths of E2B's API for the files of volumes.
const contentRoot = "volumecontent"

// contentToken is reported as the token for the files of every volume. It gives no rights, because
// this package does not serve these files; the SDKs require a token.
const contentToken = "none"

// noContentDomain is reported as the domain of the files of volumes if the daemon has no domain.
// This domain does not exist. Without any domain, the SDKs would send the files to E2B's own
// servers.
const noContentDomain = "volumes.forkd.invalid"

// volumeInfo describes a volume in a list.
type volumeInfo struct {
	ID   string `json:"volumeID"`
	Name string `json:"name"`
}

// volumeDetail describes a volume.
type volumeDetail struct {
	volumeInfo
	Token  string `json:"token"`
	Domain string `json:"domain"`
}

func volumeOf(i volume.Info) volumeInfo { return volumeInfo{i.ID, i.Name} }

func (a *Server) detailOf(i volume.Info) volumeDetail {
	d := volumeDetail{volumeOf(i), contentToken, noContentDomain}
	if a.Domain.IsSet() {
		d.Domain = a.Domain.Host()
	}
	return d
}

// createVolume makes a volume of the default size, because E2B's request has none.
func (a *Server) createVolume(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Name string `json:"name"`
	}
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	i, err := a.view(r).CreateVolume(volume.Request{Name: req.Name, SizeMiB: volume.DefaultMiB})
	if err != nil {
		return err
	}
	return face.WriteJSON(w, r, http.StatusCreated, a.detailOf(i))
}

func (a *Server) listVolumes(w http.ResponseWriter, r *http.Request) error {
	return face.WriteArray(w, a.view(r).Volumes(), volumeOf)
}

func (a *Server) volume(w http.ResponseWriter, r *http.Request) error {
	i, err := a.view(r).VolumeWithID(r.PathValue("volume"))
	if err != nil {
		return err
	}
	return face.WriteJSON(w, r, http.StatusOK, a.detailOf(i))
}

func (a *Server) deleteVolume(w http.ResponseWriter, r *http.Request) error {
	if err := a.view(r).RemoveVolumeWithID(r.Context(), r.PathValue("volume")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// volumeMount is a volume that a sandbox mounts.
type volumeMount struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

// volumeMounts are the volumes in a request. Unknown fields are refused, because a newer field could ask
// for a restricted mount, such as a read-only one.
type volumeMounts []volumeMount

// UnmarshalJSON implements json.Unmarshaler.
func (m *volumeMounts) UnmarshalJSON(p []byte) error {
	return strictly(p, "volumeMounts", (*[]volumeMount)(m))
}

// mounts() converts the volumes of a request. A name may end with a mode of forkd, ":ro" or
// ":copy". Without a mode, the sandbox writes to the volume, as in E2B.
func (m volumeMounts) mounts() (list []mounts.Mount, err error) {
	for _, v := range m {
		name, mode, _ := strings.Cut(v.Name, ":")
		list = append(list, mounts.Mount{Name: name, Path: v.Path, Mode: mode})
	}
	err = mounts.Check(list, 1)
	if wrong := (*invalid.Error)(nil); errors.As(err, &wrong) {
		if rest, ok := strings.CutPrefix(wrong.Field, "volumes"); ok {
			return nil, &invalid.Error{Field: "volumeMounts" + rest, Reason: wrong.Reason}
		}
	}
	return list, err
}

func mountsFor(list []mounts.Mount) (out []volumeMount) {
	for _, m := range list {
		out = append(out, volumeMount{m.Name, m.Path})
	}
	return out
}

// isContent reports whether a path belongs to E2B's API for the files of volumes.
func isContent(path string) bool { return isBelow(path, contentRoot) }

// refuseContent answers a request for the files of a volume. The host never reads the file system
// of a volume, because a guest may have written it. The answer is the same for every client and
// volume. The code in it is a string, as in all errors of E2B's API for files.
func refuseContent(w http.ResponseWriter, r *http.Request) {
	face.LetGo(w) // the body may be a large file
	p, _ := json.Marshal(map[string]string{"code": "not_implemented", "message": r.Method + " " + r.URL.Path +
		": forkd does not have this: mount the volume in a sandbox, and use the sandbox's files (docs/e2b.md)"})
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusNotImplemented)
	_, _ = w.Write(p) // the client has gone if this fails
}
