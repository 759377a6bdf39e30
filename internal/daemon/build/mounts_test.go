package build

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A client that keeps many caches, or saves many at once, displaces only its own caches. Among the
// caches of a client, the least recently used one is removed first.
func TestCachesAreTrimmedFairly(t *testing.T) {
	// A cache with the id "." is still being saved.
	type cache struct{ who, id string } // each cache has 3 GiB; in lists, the least recently used comes first
	for name, c := range map[string]struct {
		caches []cache
		gone   []cache
	}{
		"one client has many": {
			[]cache{{"token:bob", "old"}, {"token:ann", "1"}, {"token:ann", "2"}, {"token:ann", "3"}, {"token:ann", "4"},
				{"token:ann", "5"}}, []cache{{"token:ann", "1"}},
		},
		"both have their share": {
			[]cache{{"token:bob", "old"}, {"token:ann", "1"}, {"token:bob", "2"}, {"token:ann", "3"}, {"token:ann", "4"}}, nil,
		},
		"all have as many": {
			[]cache{{"token:bob", "old"}, {"token:ann", "1"}, {"token:bob", "2"}, {"token:ann", "3"}, {"token:bob", "4"},
				{"token:ann", "5"}}, []cache{{"token:bob", "old"}},
		},
		"one client": {
			[]cache{{"token:ann", "1"}, {"token:ann", "2"}, {"token:ann", "3"}, {"token:ann", "4"}, {"token:ann", "5"},
				{"token:ann", "6"}, {"token:ann", "7"}}, []cache{{"token:ann", "1"}, {"token:ann", "2"}},
		},
		"each of six clients has one": {
			[]cache{{"a", "x"}, {"b", "x"}, {"c", "x"}, {"d", "x"}, {"e", "x"}, {"f", "x"}}, []cache{{"a", "x"}},
		},
		"one client saves many": {
			[]cache{{"bob", "old"}, {"ann", "1"}, {"ann", "."}, {"ann", "."}, {"ann", "."}, {"ann", "."}, {"ann", "."},
				{"ann", "2"}}, []cache{{"ann", "1"}, {"ann", "2"}},
		},
		"both save, and one has its share": {
			[]cache{{"ann", "1"}, {"bob", "."}, {"bob", "2"}, {"ann", "."}, {"ann", "."}, {"ann", "3"}}, []cache{{"ann", "1"}},
		},
	} {
		b := &Builder{cfg: Config{Dir: t.TempDir()}}
		if err := os.Mkdir(filepath.Join(b.cfg.Dir, "caches"), 0o700); err != nil {
			t.Fatal(err)
		}
		files := make(map[string]cache)
		for n, one := range c.caches {
			path := b.cacheFile(one.who, one.id)
			create := os.Create
			if one.id == "." {
				create = createCache
			}
			f, err := create(path)
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
			path = f.Name()
			files[path] = one
			if err := os.Truncate(path, 3<<30); err != nil { // the file has no blocks
				t.Fatal(err)
			}
			used := time.Now().Add(time.Duration(n-100) * time.Minute)
			if err := os.Chtimes(path, used, used); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.trimCaches(); err != nil {
			t.Fatal(err)
		}
		var gone []cache
		for _, path := range slices.Sorted(maps.Keys(files)) {
			if _, err := os.Lstat(path); err != nil {
				gone = append(gone, files[path])
			}
		}
		slices.SortFunc(gone, func(a, b cache) int { return slices.Index(c.caches, a) - slices.Index(c.caches, b) })
		if !slices.Equal(gone, c.gone) {
			t.Errorf("%s: removed %v, want %v", name, gone, c.gone)
		}
	}
}
