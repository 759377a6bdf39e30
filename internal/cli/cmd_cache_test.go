package cli

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/build/image"
)

func TestCachePrune(t *testing.T) {
	dir := t.TempDir()
	var list cacheList
	for _, name := range []string{"a", "b"} {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		list.all = append(list.all, cached{Cached: image.Cached{Kind: image.CachedImage, Dir: path}})
	}
	list.inUse = []string{filepath.Join(dir, "a", "rootfs.ext4")}
	left := func() (n int) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	// If it is unknown which images a snapshot needs, no image is removed.
	unclear := list
	unclear.unclear = []string{"broken"}
	if removed, err := unclear.prune(time.Now(), false); err == nil || len(removed) != 0 || left() != 2 {
		t.Errorf("with a damaged snapshot: %v, %v, %d directories left", removed, err, left())
	}
	if removed, err := list.prune(time.Now(), true); err != nil || len(removed) != 1 || left() != 2 {
		t.Errorf("dry run: %v, %v, %d directories left", removed, err, left())
	}
	removed, err := list.prune(time.Now(), false)
	if err != nil || len(removed) != 1 || removed[0].Dir != filepath.Join(dir, "b") || left() != 1 {
		t.Errorf("prune: %v, %v, %d directories left", removed, err, left())
	}
}

// If the daemon and the user have the same cache, its items are shown once.
func TestCacheOfTheDaemon(t *testing.T) {
	now := time.Now()
	list := cacheList{all: []cached{{Cached: image.Cached{Kind: image.CachedImage, Dir: "/c/images/a", Used: now}}}}
	got := list.others([]client.CachedImage{{Dir: "/c/images/a", UsedAt: now.Unix()}, {Dir: "/c/images/a", UsedAt: 5},
		{Dir: "/c/images/b", UsedAt: now.Unix(), InUse: true}})
	if len(got) != 2 || got[0].Used.Unix() != 5 || got[1].Dir != "/c/images/b" || !got[1].InUse || !got[1].Daemon {
		t.Errorf("%+v", got)
	}
	list.daemon = got
	list.daemon[0].Bytes, list.daemon[1].Bytes = 3<<20, 5<<20
	lines := usageOf(nil, nil, nil, list)
	if u := lines[len(lines)-2]; u.Count != 3 || u.Bytes != 8<<20 || u.Removable != 3<<20 {
		t.Errorf("df: %+v", u)
	}
	list.daemon = list.others([]client.CachedImage{{Kind: client.CachedBlob, Dir: "/hub/blobs/x", Bytes: 7 << 20}})
	lines = usageOf(nil, nil, nil, list)
	if u := lines[len(lines)-1]; u.Count != 1 || u.Bytes != 7<<20 || u.Removable != 7<<20 {
		t.Errorf("df: %+v", u)
	}
}
