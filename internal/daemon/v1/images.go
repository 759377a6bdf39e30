package v1

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/build/image"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/hub"
	"github.com/forkd/forkd/internal/host/imagevm"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/proto/imageproto"
)

// maxImage bounds the stream of a container image, in bytes.
const maxImage = 256 << 30

// fillImage lets a VM fill a disk with the layers in the body, and answers with the disk. The
// daemon parses neither the layers nor the disk.
func (a *api) fillImage(w http.ResponseWriter, r *http.Request) error {
	req, err := imageQuery(r)
	if err == nil {
		err = req.Check()
	}
	if err != nil {
		return err
	}
	if r.ContentLength > maxImage {
		return &http.MaxBytesError{Limit: maxImage}
	}
	if err := a.NoKVM(); err != nil {
		return err
	}
	ctx, stop := face.WhileConnected(r.Context()) // needed because the body is not read while the request waits
	defer stop()
	leave, err := a.Images.Filler.Wait(ctx, auth.From(ctx).Who)
	if err != nil {
		return err
	}
	leave = sync.OnceFunc(leave)
	defer leave()
	if req.Disk, err = scratch(a.ScratchDir); err != nil {
		return err
	}
	defer req.Disk.Close()
	body := http.MaxBytesReader(w, r.Body, maxImage)
	req.Stream = func(ctx context.Context, out io.Writer) error {
		move := face.NewTransfer(ctx, w, a.Face.Limits.Stall)
		late := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			defer close(late)
			move.StopReading()
		})
		defer func() {
			if !stop() { // the deadline was set or soon will be, so no other request may use this connection
				<-late
				w.Header().Set("Connection", "close")
			}
		}()
		_, err := io.Copy(out, move.From(body))
		return move.End(err)
	}
	err = a.Images.Filler.Fill(ctx, req)
	leave()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	move := face.NewTransfer(r.Context(), w, a.Face.Limits.Stall)
	if err := move.End(imageproto.WriteDisk(move.To(w), req.Disk, req.Size)); err != nil {
		a.Face.Abort(r, err)
	}
	return nil
}

// imageQuery reads the query of a request for a disk.
func imageQuery(r *http.Request) (req imagevm.Request, err error) {
	q := r.URL.Query()
	const maxMiB = 1 << 24 // prevents an overflow of int64; Fill checks the real limit
	mib, err := strconv.ParseInt(q.Get("disk_mib"), 10, 64)
	if err != nil || mib < 0 || mib > maxMiB {
		return req, invalid.Errorf("disk_mib", "%.100q: want the size of the disk as a number of MiB", q.Get("disk_mib"))
	}
	id, err := hex.DecodeString(strings.ReplaceAll(q.Get("uuid"), "-", ""))
	if err != nil || len(id) != len(req.UUID) {
		return req, invalid.Errorf("uuid", "%.100q: want 32 hexadecimal digits", q.Get("uuid"))
	}
	req.Kernel, req.Size = q.Get("kernel"), mib<<20
	copy(req.UUID[:], id)
	return req, nil
}

// scratch returns a new file in dir and removes its name. The file vanishes when the daemon and its
// VMs have closed it or are killed.
func scratch(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// listImages lists the daemon's image cache and the hub's cache.
func (a *api) listImages(r *http.Request) ([]apiv1.CachedImage, error) {
	list, err := a.Images.List()
	if err != nil {
		return nil, err
	}
	blobs, err := a.Hub.Cached()
	if err != nil {
		return nil, err
	}
	inUse, _ := a.baseImages(r)
	return append(cachedImages(list, append(inUse, a.Builds.Held()...)), cachedBlobs(blobs)...), nil
}

// pruneImages removes cached images and blobs. It returns an error if it cannot know which images
// are needed by snapshots.
func (a *api) pruneImages(r *http.Request) (out apiv1.PrunedImages, err error) {
	unused, err := secsQuery(r, "unused_secs", defaultUnused, maxUnused)
	if err != nil {
		return out, err
	}
	if out.DryRun, err = boolQuery(r, "dry_run"); err != nil {
		return out, err
	}
	inUse, unclear := a.baseImages(r)
	inUse = append(inUse, a.Builds.Held()...)
	if len(unclear) > 0 {
		return out, face.NewError(http.StatusConflict, fmt.Sprintf("it is not known which images these snapshots need: %.1000s; "+
			"wait until they are ready, or remove those that are damaged", strings.Join(unclear, ", ")))
	}
	before := time.Now().Add(-unused)
	removed, err := a.Images.Prune(inUse, before, out.DryRun)
	blobs, blobErr := a.Hub.Prune(before, out.DryRun)
	out.Removed = append(cachedImages(removed, nil), cachedBlobs(blobs)...)
	return out, errors.Join(err, blobErr)
}

// cachedBlobs describes blobs of the hub's cache.
func cachedBlobs(list []hub.CachedBlob) (out []apiv1.CachedImage) {
	for _, b := range list {
		detail := b.File
		if detail == "" {
			detail = "an interrupted pull"
		}
		out = append(out, apiv1.CachedImage{Kind: apiv1.CachedBlob, Dir: b.Path, Detail: detail, Bytes: b.Bytes,
			UsedAt: b.Used.Unix()})
	}
	return out
}

// Default and maximum of the time that an image must be unused before it may be removed.
const (
	defaultUnused = 24 * time.Hour
	maxUnused     = 100 * 365 * 24 * time.Hour
)

// baseImages returns the images that snapshots are based on (inUse), and the tags of snapshots
// whose image is not known (unclear). Such a snapshot may need any image: it is being made or
// replaced, or the snapshot or the record of its image is damaged.
func (a *api) baseImages(r *http.Request) (inUse, unclear []string) {
	view := a.view(r)
	for _, i := range view.Snapshots() {
		if image := view.BaseImage(i.Base); image != "" {
			inUse = append(inUse, image)
		} else if i.Base.Digest != "" || i.Damage != "" {
			unclear = append(unclear, i.Tag)
		}
		if i.Writing || i.Replacing {
			unclear = append(unclear, i.Tag)
		}
	}
	return inUse, unclear
}

func cachedImages(list []image.Cached, rootfs []string) []apiv1.CachedImage {
	inUse, out := image.InUse(rootfs), []apiv1.CachedImage{}
	for _, c := range list {
		out = append(out, apiv1.CachedImage{Kind: c.Kind, Dir: c.Dir, Detail: c.Detail, Bytes: c.Bytes,
			UsedAt: c.Used.Unix(), InUse: inUse[c.Dir]})
	}
	return out
}
