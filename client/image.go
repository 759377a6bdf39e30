package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// FillRequest asks for a disk with the files of a container image.
type FillRequest struct {
	Kernel  string // path of a guest kernel on the daemon's host
	DiskMiB int    // size of the file system
	UUID    string // UUID of the file system
}

// FillImage has a VM of the daemon unpack the layers of a container image onto an empty disk.
// `forkd build docker://IMAGE` uses it. The formats of stream and of the answer belong to one
// version of forkd, so only programs of the daemon's version can use FillImage. FillImage may wait
// for a read of stream even after ctx has ended. So when ctx ends, the caller should make sure that
// such a read returns.
func (c *Client) FillImage(ctx context.Context, req FillRequest, stream io.Reader) (io.ReadCloser, error) {
	q := url.Values{"kernel": {req.Kernel}, "disk_mib": {strconv.Itoa(req.DiskMiB)}, "uuid": {req.UUID}}
	resp, err := c.request(ctx, http.MethodPost, "/v1/images?"+q.Encode(), "application/octet-stream", stream)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// CachedImages lists the daemon's caches. They hold the images that builds of Dockerfiles and templates
// start from, and the compressed files of snapshots that were packed, pushed or partly pulled.
func (c *Client) CachedImages(ctx context.Context) (list []CachedImage, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/images", nil, &list)
	return list, err
}

// PruneImages removes the items of the daemon's caches that no snapshot is based on, and that were
// not used for the given time. With dryRun it only reports them.
func (c *Client) PruneImages(ctx context.Context, unused time.Duration, dryRun bool) (p PrunedImages, err error) {
	q := url.Values{"unused_secs": {strconv.FormatFloat(unused.Seconds(), 'f', -1, 64)}}
	if dryRun {
		q.Set("dry_run", "true")
	}
	err = c.call(ctx, http.MethodDelete, "/v1/images?"+q.Encode(), nil, &p)
	return p, err
}
