package e2b

import (
	"errors"
	"net/http"
	"strings"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/volume"
)

// noContentDomain is reported as the domain of the files of volumes if the daemon has no domain.
// The reported domain does not exist, so the client must set E2B_VOLUME_API_URL. Without any
// domain, the SDKs would send the files to E2B's own servers.
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

func (a *Server) detailOf(i volume.Info, who auth.Principal) volumeDetail {
	d := volumeDetail{volumeOf(i), a.contentToken(who, i.ID), noContentDomain}
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
	return face.WriteJSON(w, r, http.StatusCreated, a.detailOf(i, auth.From(r.Context())))
}

func (a *Server) listVolumes(w http.ResponseWriter, r *http.Request) error {
	return face.WriteArray(w, a.view(r).Volumes(), volumeOf)
}

func (a *Server) volume(w http.ResponseWriter, r *http.Request) error {
	i, err := a.view(r).VolumeWithID(r.PathValue("volume"))
	if err != nil {
		return err
	}
	return face.WriteJSON(w, r, http.StatusOK, a.detailOf(i, auth.From(r.Context())))
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
