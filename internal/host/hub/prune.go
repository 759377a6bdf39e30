package hub

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
)

// CachedBlob describes a blob in the cache. No snapshot needs the blob: a later push can make it
// again, and a later pull can fetch it again.
type CachedBlob struct {
	Path  string
	File  string    // name of the artifact.Part from which this host has made the blob; empty if the blob was fetched
	Bytes int64     // size
	Used  time.Time // last use
}

// Cached returns the blobs in the cache, most recently used first. Blobs that are just being written are not among
// them.
func (h *Hub) Cached() (list []CachedBlob, err error) {
	blobs, err := h.cache.list("blobs")
	if err != nil {
		return nil, err
	}
	files, err := h.cache.madeFrom()
	if err != nil {
		return nil, err
	}
	for _, b := range blobs {
		if strings.HasPrefix(b.Name(), tmpPrefix) {
			continue
		}
		list = append(list, CachedBlob{Path: h.cache.path("blobs", b.Name()), File: files[b.Name()], Bytes: b.Size(),
			Used: b.ModTime()})
	}
	return list, nil
}

// Prune removes the blobs that were last used before the given time, and returns them. With dryRun, it only returns
// them. Requests that have opened a blob can still read it.
func (h *Hub) Prune(before time.Time, dryRun bool) (removed []CachedBlob, err error) {
	all, err := h.Cached()
	if err != nil {
		return nil, err
	}
	for _, b := range all {
		if b.Used.After(before) {
			continue
		}
		if !dryRun {
			if rmErr := os.Remove(b.Path); rmErr != nil {
				if !errors.Is(rmErr, fs.ErrNotExist) { // a request may have removed it at the same time
					err = errors.Join(err, rmErr)
				}
				continue
			}
		}
		removed = append(removed, b)
	}
	return removed, err
}

// madeFrom returns the names of the files that blobs were made from, by the blobs' file names.
func (c *cache) madeFrom() (map[string]string, error) {
	records, err := c.list("made")
	names := make(map[string]string)
	for _, r := range records {
		if b, ok := readRecord(c.path("made", r.Name())); ok && b.Digest.Algorithm() == digest.SHA256 {
			names[b.Digest.Encoded()] = b.Part.Name
		}
	}
	return names, err
}
