package image

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// cacheWith creates a cache with two images, three kernels with initramfses, a leftover, a running
// build, and entries of other programs.
func cacheWith(t *testing.T) (cache string) {
	t.Helper()
	cache = t.TempDir()
	fakeImage(t, cache, testKey)
	bad := fakeImage(t, cache, strings.Repeat("b", 32))
	if err := os.Remove(filepath.Join(bad, rootfsName)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{
		"images/.c.staging/work", "images/.d.staging/work", "images/.removed-e", "images/other",
		"kernel/6.12.9+deb13-cloud-amd64/initramfs-1", "kernel/6.12.10+deb13-cloud-amd64/initramfs-2",
		"kernel/user-1/initramfs-3",
		"kernel/forkd-6.12", "machine/state",
	} {
		dir = filepath.Join(cache, dir)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, 8192), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	unlock, err := lock(t.Context(), filepath.Join(cache, "images/.d"+lockSuffix), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(unlock)
	return cache
}

// dirs returns the directories of list, relative to the cache.
func dirs(t *testing.T, cache string, list []Cached) (rel []string) {
	t.Helper()
	for _, c := range list {
		name, err := filepath.Rel(cache, c.Dir)
		if err != nil {
			t.Fatal(err)
		}
		rel = append(rel, c.Kind+" "+name)
	}
	return rel
}

func TestListCached(t *testing.T) {
	if list, err := ListCached(t.TempDir()); err != nil || len(list) != 0 {
		t.Errorf("empty cache: %v, %v", list, err)
	}
	cache := cacheWith(t)
	list, err := ListCached(cache)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"leftover images/.c.staging", "leftover images/.removed-e", "image images/" + testKey,
		"image images/" + strings.Repeat("b", 32),
		"kernel kernel/6.12.10+deb13-cloud-amd64", "initramfs kernel/6.12.10+deb13-cloud-amd64/initramfs-2",
		"kernel kernel/6.12.9+deb13-cloud-amd64", "initramfs kernel/6.12.9+deb13-cloud-amd64/initramfs-1",
		"kernel kernel/user-1", "initramfs kernel/user-1/initramfs-3",
	}
	if got := dirs(t, cache, list); !slices.Equal(got, want) {
		t.Errorf("listed\n got %q\nwant %q", got, want)
	}
	for _, c := range list {
		if c.Kind == CachedInitramfs && c.Bytes < 8192 {
			t.Errorf("%s: %d bytes", c.Dir, c.Bytes)
		}
		if c.Kind == CachedKernel && c.Bytes >= 3*8192 {
			t.Errorf("%s: %d bytes, with those of its initramfs", c.Dir, c.Bytes)
		}
	}
}

// If entries appear or disappear while the cache is listed, there is no error.
func TestListCachedWhileItChanges(t *testing.T) {
	cache := t.TempDir()
	dir := fakeImage(t, cache, testKey)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := os.Rename(dir, cache+"/gone"); err != nil {
				t.Error(err)
			}
			if err := os.Rename(cache+"/gone", dir); err != nil {
				t.Error(err)
			}
		}
	}()
	for range 2000 {
		if _, err := ListCached(cache); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	<-stopped
}

func TestPruneKeepsWhatIsInUse(t *testing.T) {
	cache := cacheWith(t)
	list, err := ListCached(cache)
	if err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(imagesDir(cache), testKey)
	inUse := []string{filepath.Join(image, rootfsName)}
	if got := Removable(list, inUse, time.Now().Add(-time.Hour)); len(got) != 0 {
		t.Errorf("removable, though a build has just used it: %q", dirs(t, cache, got))
	}
	removable := Removable(list, inUse, time.Now().Add(time.Hour))
	want := []string{
		"leftover images/.c.staging", "leftover images/.removed-e", "image images/" + strings.Repeat("b", 32),
		"initramfs kernel/6.12.10+deb13-cloud-amd64/initramfs-2",
		"kernel kernel/6.12.9+deb13-cloud-amd64", "initramfs kernel/6.12.9+deb13-cloud-amd64/initramfs-1",
		"kernel kernel/user-1", "initramfs kernel/user-1/initramfs-3",
	}
	if got := dirs(t, cache, removable); !slices.Equal(got, want) {
		t.Errorf("removable\n got %q\nwant %q", got, want)
	}
	for _, c := range removable {
		if err := c.Remove(); err != nil {
			t.Error(err)
		}
	}
	for dir, want := range map[string][]string{
		"images": {".d.lock", ".d.staging", testKey, "other"},
		"kernel": {"6.12.10+deb13-cloud-amd64", "forkd-6.12"}, ".": {"images", "kernel", "machine"},
	} {
		if got := names(t, filepath.Join(cache, dir)); !slices.Equal(got, want) {
			t.Errorf("left in %s: %q, want %q", dir, got, want)
		}
	}
	if _, err := Open(image); err != nil {
		t.Error(err)
	}
}

// A leftover that a build takes over between listing and removal is not removed.
func TestRemoveLeavesBuildsAlone(t *testing.T) {
	cache := cacheWith(t)
	c := Cached{Kind: CachedLeftover, Dir: filepath.Join(cache, "images/.d.staging")}
	if err := c.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(c.Dir); err != nil {
		t.Error(err)
	}
}

func TestBuildsNoteWhatTheyUse(t *testing.T) {
	cache := t.TempDir()
	r := &Recipe{Name: "x", Base: "oci:" + writeLayout(t, testImage(t)), DiskMiB: 64, MemoryMiB: 128, VCPUs: 1}
	img, err := Build(context.Background(), cache, r, Unpacker{Fill: (&builderVM{}).fill}, nil)
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-48 * time.Hour)
	if err := os.Chtimes(img.Dir, old, old); err != nil {
		t.Fatal(err)
	}
	if _, err := Build(context.Background(), cache, r, Unpacker{Fill: (&builderVM{}).fill}, nil); err != nil {
		t.Fatal(err)
	}
	list, err := ListCached(cache)
	if err != nil || len(list) != 1 || !list[0].Used.After(old.Add(time.Hour)) || list[0].Detail != "x" {
		t.Errorf("after a build that used the image: %+v, %v", list, err)
	}
}
