package client

import (
	"context"
	"net/http"
	"net/url"
)

// DeleteOptions say what happens to snapshots that build on the deleted snapshot. By default the
// daemon refuses to delete a snapshot on which other snapshots build.
type DeleteOptions struct {
	Cascade bool // delete the snapshots that build on it too
	Force   bool // keep the snapshots that build on it; they have their own hard links to the layers
}

func snapshotPath(tag, suffix string) string { return "/v1/snapshots/" + url.PathEscape(tag) + suffix }

// Snapshots lists all snapshots.
func (c *Client) Snapshots(ctx context.Context) (list []Snapshot, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/snapshots", nil, &list)
	return list, err
}

// Snapshot describes one snapshot.
func (c *Client) Snapshot(ctx context.Context, tag string) (d SnapshotDetail, err error) {
	err = c.call(ctx, http.MethodGet, snapshotPath(tag, "/info"), nil, &d)
	return d, err
}

// Bake boots a VM, warms it up and makes a snapshot of it. It may take minutes.
func (c *Client) Bake(ctx context.Context, req BakeRequest) (b Baked, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/snapshots", req, &b)
	return b, err
}

// DeleteSnapshot removes a snapshot.
func (c *Client) DeleteSnapshot(ctx context.Context, tag string, opts DeleteOptions) error {
	query := url.Values{}
	if opts.Cascade {
		query.Set("cascade", "true")
	}
	if opts.Force {
		query.Set("force", "true")
	}
	suffix := ""
	if len(query) > 0 {
		suffix = "?" + query.Encode()
	}
	return c.call(ctx, http.MethodDelete, snapshotPath(tag, suffix), nil, nil)
}

// EncryptSnapshot encrypts the files of a snapshot, and of all snapshots that contain its data.
func (c *Client) EncryptSnapshot(ctx context.Context, tag string) (f Family, err error) {
	return f, c.call(ctx, http.MethodPost, snapshotPath(tag, "/encrypt"), nil, &f)
}

// DecryptSnapshot undoes EncryptSnapshot.
func (c *Client) DecryptSnapshot(ctx context.Context, tag string) (f Family, err error) {
	return f, c.call(ctx, http.MethodPost, snapshotPath(tag, "/decrypt"), nil, &f)
}

// ShredSnapshot destroys the keys of an encrypted snapshot and of all snapshots that contain its data.
// It also deletes these snapshots.
func (c *Client) ShredSnapshot(ctx context.Context, tag string) (f Family, err error) {
	return f, c.call(ctx, http.MethodPost, snapshotPath(tag, "/shred"), nil, &f)
}

// VerifySnapshot compares every file of a snapshot with its digest.
func (c *Client) VerifySnapshot(ctx context.Context, tag string) error {
	return c.call(ctx, http.MethodPost, snapshotPath(tag, "/verify"), nil, nil)
}
