package client

import (
	"context"
	"net/http"
	"net/url"
)

func volumePath(name string) string { return "/v1/volumes/" + url.PathEscape(name) }

// CreateVolume makes an empty volume.
func (c *Client) CreateVolume(ctx context.Context, req VolumeRequest) (v Volume, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/volumes", req, &v)
	return v, err
}

// SnapshotVolume makes a volume with the content and the size of the volume with the given name. The
// request contains the name of the new volume.
func (c *Client) SnapshotVolume(ctx context.Context, name string, req VolumeSnapshotRequest) (v Volume, err error) {
	err = c.call(ctx, http.MethodPost, volumePath(name)+"/snapshot", req, &v)
	return v, err
}

// VolumePage lists a part of the volumes, sorted by name; see SandboxPage.
func (c *Client) VolumePage(ctx context.Context, req PageRequest) (list []Volume, next string, err error) {
	next, err = c.page(ctx, "/v1/volumes", req, &list)
	return list, next, err
}

// Volumes lists all volumes.
func (c *Client) Volumes(ctx context.Context) ([]Volume, error) {
	list, _, err := c.VolumePage(ctx, PageRequest{})
	return list, err
}

// Volume describes one volume.
func (c *Client) Volume(ctx context.Context, name string) (v Volume, err error) {
	err = c.call(ctx, http.MethodGet, volumePath(name), nil, &v)
	return v, err
}

// DeleteVolume removes a volume and its data.
func (c *Client) DeleteVolume(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, volumePath(name), nil, nil)
}

// AttachVolume mounts a volume in a running sandbox. A volume slot that the sandbox has from its
// snapshot must be free.
func (c *Client) AttachVolume(ctx context.Context, id string, m VolumeMount) (s Sandbox, err error) {
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/volumes"), m, &s)
	return s, err
}

// DetachVolume unmounts a volume in a running sandbox. The volume keeps its data. A volume that a
// program uses stays mounted.
func (c *Client) DetachVolume(ctx context.Context, id, volume string) error {
	return c.call(ctx, http.MethodDelete, sandboxPath(id, "/volumes/"+url.PathEscape(volume)), nil, nil)
}
