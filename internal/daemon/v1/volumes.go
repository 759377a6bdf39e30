package v1

import (
	"net/http"
	"slices"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/volume"
)

// volumesFor returns a function that describes volumes to the client of a request.
func (a *api) volumesFor(r *http.Request) func(volume.Info) apiv1.Volume {
	view := a.view(r)
	return func(i volume.Info) apiv1.Volume {
		return apiv1.Volume{ID: i.ID, Name: i.Name, Owner: view.OwnerOfVolume(i), SizeBytes: i.SizeBytes,
			DiskBytes: i.DiskBytes, Writer: i.Writer, Labels: i.Labels, CreatedAt: i.Created.Unix()}
	}
}

// mountsOf converts the volumes that a request mounts, and mountsFor converts the volumes of a
// sandbox for an answer.
func mountsOf(list []apiv1.VolumeMount) (m []mounts.Mount) {
	for _, v := range list {
		m = append(m, mounts.Mount(v))
	}
	return m
}

func mountsFor(m []mounts.Mount) (list []apiv1.VolumeMount) {
	for _, v := range m {
		list = append(list, apiv1.VolumeMount(v))
	}
	return list
}

func (a *api) createVolume(r *http.Request, req *apiv1.VolumeRequest) (apiv1.Volume, error) {
	return described(a.volumesFor(r))(a.view(r).CreateVolume(volume.Request{Name: req.Name, SizeMiB: req.SizeMiB,
		Labels: req.Labels}))
}

func (a *api) snapshotVolume(r *http.Request, req *apiv1.VolumeSnapshotRequest) (apiv1.Volume, error) {
	return described(a.volumesFor(r))(a.view(r).SnapshotVolume(r.Context(), r.PathValue("volume"),
		volume.Request{Name: req.Name, Labels: req.Labels}))
}

func (a *api) listVolumes(r *http.Request) (l list[volume.Info, apiv1.Volume], err error) {
	wanted, err := selectorOf(r)
	if err != nil {
		return l, err
	}
	infos := slices.DeleteFunc(a.view(r).Volumes(), func(i volume.Info) bool { return !wanted.Match(i.Labels) })
	key := func(i volume.Info) string { return i.Name }
	return list[volume.Info, apiv1.Volume]{infos, key, a.volumesFor(r)}, nil
}

func (a *api) getVolume(r *http.Request) (apiv1.Volume, error) {
	return described(a.volumesFor(r))(a.view(r).Volume(r.PathValue("volume")))
}

func (a *api) deleteVolume(r *http.Request) error {
	return a.view(r).RemoveVolume(r.Context(), r.PathValue("volume"))
}

func (a *api) attachVolume(r *http.Request, req *apiv1.VolumeMount) (apiv1.Sandbox, error) {
	return described(a.sandboxesFor(r))(a.view(r).AttachVolume(r.Context(), r.PathValue("id"), mounts.Mount(*req)))
}

func (a *api) detachVolume(r *http.Request) error {
	_, err := a.view(r).DetachVolume(r.Context(), r.PathValue("id"), r.PathValue("volume"))
	return err
}
