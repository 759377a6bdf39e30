package build

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/forkd/forkd/internal/build/plan"
	"github.com/forkd/forkd/internal/host/agentclient"
)

// Bounds on the caches that are saved on the host. maxCache is the maximum size of one cache, in
// bytes. A larger cache is not saved.
const (
	maxCache  = 4 << 30
	maxCaches = 16 << 30 // bytes of the saved caches of all clients; see trimCaches
)

// mounted is a mount of a command.
type mounted struct {
	*plan.Mount
	dir  string   // directory in the guest with the content of the mount
	made []string // files and directories created for the mount, innermost first
}

// mount prepares the mounts of a command. If the command gets secrets as variables, mount adds
// these variables to env. The returned function removes the mounts and saves the content of caches.
func (g *guest) mount(ctx context.Context, mounts []plan.Mount, env map[string]string) (unmount func() error,
	err error) {
	if len(mounts) == 0 {
		return func() error { return nil }, nil
	}
	dir, err := g.script(ctx, workDir)
	if err != nil {
		return nil, err
	}
	dir = strings.TrimSpace(dir)
	var list []mounted
	for n := range mounts {
		m := mounted{Mount: &mounts[n], dir: path.Join(dir, strconv.Itoa(n))}
		if m.Kind == plan.MountSecret {
			secret, err := g.secret(m.Mount)
			if err != nil {
				return nil, err
			}
			if m.Env != "" && secret != nil {
				env[m.Env] = string(secret)
			}
			if m.Target == "" || secret == nil {
				continue
			}
		}
		if err := g.mountOne(ctx, &m); err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.Target, err)
		}
		list = append(list, m)
	}
	return func() error {
		for _, m := range slices.Backward(list) {
			if err := g.unmountOne(ctx, &m); err != nil {
				return err
			}
		}
		return g.c.Remove(ctx, dir, "root")
	}, nil
}

func (g *guest) mountOne(ctx context.Context, m *mounted) error {
	source, mode := m.dir, ""
	switch m.Kind {
	case plan.MountTmpfs:
		source = ""
		if m.SizeMiB > 0 {
			source = strconv.FormatInt(m.SizeMiB, 10)
		}
	case plan.MountCache:
		if err := g.fillCache(ctx, m.Mount, m.dir); err != nil {
			return err
		}
	case plan.MountSecret:
		source, mode = path.Join(m.dir, "secret"), "ro"
		if err := g.putSecret(ctx, m.Mount, m.dir, source); err != nil {
			return err
		}
	case plan.MountBind:
		if _, err := output(ctx, g.c, "root", "mkdir", m.dir); err != nil {
			return err
		}
		got, err := g.fetch(ctx, m.Source, m.dir, false)
		if err != nil {
			return err
		}
		if got.single {
			name, err := g.script(ctx, `cd "$1" && ls -A`, m.dir)
			if err != nil {
				return err
			}
			source = path.Join(m.dir, strings.TrimSuffix(name, "\n"))
		}
		if m.ReadOnly {
			mode = "ro"
		}
	default:
		return fmt.Errorf("kind %q is not known", m.Kind)
	}
	made, err := g.script(ctx, mountScript, m.Kind, source, m.Target, mode)
	m.made = strings.FieldsFunc(made, func(r rune) bool { return r == '\n' })
	return err
}

func (g *guest) unmountOne(ctx context.Context, m *mounted) error {
	if _, err := g.script(ctx, unmountScript, append([]string{m.Target}, m.made...)...); err != nil {
		return fmt.Errorf("unmount %s: %w", m.Target, err)
	}
	switch m.Kind {
	case plan.MountCache:
		if err := g.keepCache(ctx, m.Mount, m.dir); err != nil {
			return fmt.Errorf("keep the cache %s: %w", m.ID, err)
		}
	case plan.MountSecret:
		if _, err := g.script(ctx, unmountScript, m.dir); err != nil {
			return fmt.Errorf("unmount the secret %s: %w", m.ID, err)
		}
	}
	return nil
}

// secret returns the secret that the client sent for a mount, or nil if there is none.
func (g *guest) secret(m *plan.Mount) ([]byte, error) {
	secret, ok := g.w.req.Secrets[m.ID]
	if !ok && m.Required {
		return nil, fmt.Errorf("secret %s: none was given: forkd build --secret id=%s,src=FILE", m.ID, m.ID)
	}
	if ok && secret == nil {
		secret = []byte{}
	}
	return secret, nil
}

// putSecret writes a secret to a file in the guest's memory.
func (g *guest) putSecret(ctx context.Context, m *plan.Mount, dir, file string) error {
	if _, err := g.script(ctx, secretScript, dir); err != nil {
		return err
	}
	if err := g.c.WriteFile(ctx, file, "root", bytes.NewReader(g.w.req.Secrets[m.ID])); err != nil {
		return err
	}
	_, err := g.script(ctx, `chown "$2" "$1" && chmod "$3" "$1"`, file, fmt.Sprintf("%d:%d", m.UID, m.GID),
		cmp.Or(m.Mode, "400"))
	return err
}

// cacheFile returns the path of a cache's content. Each client has its own caches.
func (g *guest) cacheFile(m *plan.Mount) string { return g.w.b.cacheFile(g.w.req.Who, m.ID) }

// cacheFile returns the path of the content of a client's cache. The name of the file begins with a
// digest of the client's name; see cacheClient.
func (b *Builder) cacheFile(who, id string) string {
	client, cache := sha256.Sum256([]byte(who)), sha256.Sum256([]byte(who+"\x00"+id))
	return filepath.Join(b.cfg.Dir, "caches", hex.EncodeToString(client[:])+"-"+hex.EncodeToString(cache[:])+".tar")
}

// createCache creates a temporary file for saving the content of a cache. Later the file is renamed
// to the cache file.
func createCache(name string) (*os.File, error) {
	return os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
}

// cacheClient returns the part of a file name that stands for the client. The file is a cache file
// or its temporary file.
func cacheClient(name string) string {
	client, _, _ := strings.Cut(strings.TrimPrefix(name, "."), "-")
	return client
}

// fillCache creates the directory of a cache, and fills it with the content that the cache had
// after an earlier command.
func (g *guest) fillCache(ctx context.Context, m *plan.Mount, dir string) error {
	owner := fmt.Sprintf("%d:%d", m.UID, m.GID)
	if _, err := g.script(ctx, `mkdir "$1" && chown "$2" "$1" && chmod "$3" "$1"`, dir, owner,
		cmp.Or(m.Mode, "755")); err != nil {
		return err
	}
	f, err := os.Open(g.cacheFile(m))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return g.unpack(ctx, f, dir)
}

// keepCache saves the content of a cache for later commands. If two builds save the same cache, the
// content of the later build remains.
func (g *guest) keepCache(ctx context.Context, m *plan.Mount, dir string) error {
	name := g.cacheFile(m)
	f, err := createCache(name)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // no effect after the rename
	defer f.Close()
	errLarge, total := errors.New("too large"), int64(0)
	r, err := g.c.ExecStream(
		ctx,
		agentclient.ExecRequest{Args: []string{"tar", "-cf", "-", "-C", dir, "."}, User: "root",
			Timeout: maxCommand},
		func(s agentclient.Stream, p []byte) error {
			if s != agentclient.Stdout {
				return nil
			}
			if total += int64(len(p)); total > maxCache {
				return errLarge
			}
			if err := room(filepath.Dir(name), int64(len(p))); err != nil {
				return err
			}
			_, err := f.Write(p)
			return err
		},
	)
	if errors.Is(err, errLarge) {
		g.w.o.Output(g.i, fmt.Sprintf("the cache %s has more than %d GiB and is not kept", m.ID, maxCache>>30))
		return nil
	}
	if err == nil {
		err = failure(r, maxCommand)
	}
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return err
	}
	return g.w.b.trimCaches()
}

// trimCaches removes caches until the limit for all clients is met. The least recently used caches
// of clients with more than an equal share are removed first. So no client can displace other
// clients' caches. Temporary files count for their clients, but are not removed. So temporary files
// may exceed the limit. Saved caches alone never exceed it.
func (b *Builder) trimCaches() error {
	dir := filepath.Join(b.cfg.Dir, "caches")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var list []fs.FileInfo
	var total int64
	sizes := make(map[string]int64) // bytes by client
	for _, e := range entries {
		i, err := e.Info()
		if err != nil { // another build has removed it
			continue
		}
		total += i.Size()
		sizes[cacheClient(i.Name())] += i.Size()
		if !strings.HasPrefix(i.Name(), ".") {
			list = append(list, i)
		}
	}
	slices.SortFunc(list, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	share := maxCaches / int64(max(1, len(sizes)))
	for total > maxCaches {
		n := slices.IndexFunc(list, func(i fs.FileInfo) bool { return sizes[cacheClient(i.Name())] > share })
		if n < 0 { // the clients that exceed their shares have only temporary files
			return nil
		}
		i := list[n]
		list = slices.Delete(list, n, n+1)
		err := os.Remove(filepath.Join(dir, i.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // another build may have removed it
			return err
		}
		total -= i.Size()
		sizes[cacheClient(i.Name())] -= i.Size()
	}
	return nil
}
