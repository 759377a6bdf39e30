// Package atrest encrypts snapshots on the disk, decrypts them, and destroys their keys.
//
// A family of snapshots is a snapshot and all snapshots that have data of it. One call encrypts,
// with one new key, the files that only the snapshots of a family have. Base images, boot files and
// manifests stay unencrypted. Package store exchanges the files of a snapshot in one step, package
// vault keeps the keys, and package crypt defines the format of the files.
package atrest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/crypt"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/hardlink"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vault"
)

// Config configures a Crypter. All fields are required.
type Config struct {
	Store *store.Store
	Vault *vault.Vault
	Log   *slog.Logger
}

// Crypter encrypts and decrypts families of snapshots. Its methods may be called concurrently;
// concurrent calls wait for each other.
type Crypter struct {
	cfg   Config
	place chan struct{} // has a value while a family is being changed
}

// New returns a Crypter.
func New(cfg Config) *Crypter { return &Crypter{cfg: cfg, place: make(chan struct{}, 1)} }

// Result says what a call has done.
type Result struct {
	Tags   []string // snapshots that were encrypted, decrypted or deleted
	Others []string // snapshots that share layers with the family; the shared layers stay unencrypted
}

// enter waits until no other family is being changed.
func (c *Crypter) enter(ctx context.Context) (leave func(), err error) {
	select {
	case c.place <- struct{}{}:
		return func() { <-c.place }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Encrypt encrypts the family of a snapshot. It skips files that are already encrypted, so a second
// call completes the work of an interrupted one. If a snapshot is in use, the error is a
// *store.InUseError. After an error, some snapshots of the family may be encrypted.
func (c *Crypter) Encrypt(ctx context.Context, tag string) (r Result, err error) {
	leave, err := c.enter(ctx)
	if err != nil {
		return r, err
	}
	defer leave()
	w := &work{ctx: ctx, cfg: &c.cfg}
	for n := 0; ; n++ {
		todo, err := w.begin(tag)
		if err != nil {
			return r, err
		}
		if len(todo) == 0 {
			break
		}
		if n == maxRounds {
			return r, &store.InUseError{Tag: tag, Leases: 1}
		}
		for _, m := range todo {
			if err := w.encrypt(m); err != nil {
				err = fmt.Errorf("encrypt snapshot %q: %w", m.Tag, err)
				if w.keyID != "" {
					err = errors.Join(err, c.cfg.Store.ForgetKey(w.keyID))
				}
				return r, err
			}
			r.Tags = append(r.Tags, m.Tag)
		}
	}
	c.cfg.Log.Info("snapshots encrypted", "family", tag, "snapshots", r.Tags, "key", w.keyID)
	r.Others = w.others
	return r, nil
}

// maxRounds bounds how often Encrypt looks for more snapshots. While Encrypt works on one snapshot,
// a client can fork another snapshot of the family and branch the child. The layers of this branch
// are unencrypted.
const maxRounds = 8

// begin returns the snapshots of a family that have files to encrypt.
func (w *work) begin(tag string) (todo []store.Member, err error) {
	if w.family, err = w.cfg.Store.Family(w.ctx, tag); err != nil {
		return nil, err
	}
	if err := w.count(""); err != nil {
		return nil, err
	}
	if err := w.room(); err != nil {
		return nil, fmt.Errorf("encrypt snapshot %q: %w", tag, err)
	}
	for _, m := range w.family {
		if len(w.todo[m.ID]) > 0 {
			todo = append(todo, m)
		}
	}
	return todo, nil
}

// Decrypt decrypts the family of a snapshot. It destroys keys that no snapshot uses any longer.
func (c *Crypter) Decrypt(ctx context.Context, tag string) (r Result, err error) {
	leave, err := c.enter(ctx)
	if err != nil {
		return r, err
	}
	defer leave()
	family, err := c.cfg.Store.Family(ctx, tag)
	if err != nil {
		return r, err
	}
	w := &work{ctx: ctx, cfg: &c.cfg, family: family}
	if err := w.count(crypt.Suffix); err != nil {
		return r, err
	}
	if len(w.others) > 0 {
		return r, &store.EncryptedError{Tag: tag, Reason: "has encrypted layers of " + w.others[0] +
			": decrypt that snapshot"}
	}
	if err := w.room(); err != nil {
		return r, fmt.Errorf("decrypt snapshot %q: %w", tag, err)
	}
	for _, m := range family {
		if len(m.Keys) == 0 {
			continue
		}
		write := func(from, to string) error { return w.decrypt(m, from, to) }
		if err := c.cfg.Store.Rewrite(m.Tag, m.ID, write); err != nil {
			return r, fmt.Errorf("decrypt snapshot %q: %w", m.Tag, err)
		}
		r.Tags = append(r.Tags, m.Tag)
	}
	c.cfg.Log.Info("snapshots decrypted", "family", tag, "snapshots", r.Tags)
	return r, nil
}

// Shred destroys the keys of the family of a snapshot, and then deletes the family.
func (c *Crypter) Shred(ctx context.Context, tag string) (r Result, err error) {
	leave, err := c.enter(ctx)
	if err != nil {
		return r, err
	}
	defer leave()
	gone, err := c.cfg.Store.Shred(tag)
	for _, d := range gone {
		r.Tags = append(r.Tags, d.Tag)
	}
	if len(gone) > 0 {
		c.cfg.Log.Info("keys destroyed", "family", tag, "snapshots", r.Tags)
	}
	return r, err
}

// inode identifies a file that several snapshots may have.
type inode struct{ dev, ino uint64 }

// work is the change of one family.
type work struct {
	ctx    context.Context
	cfg    *Config
	family []store.Member

	todo   map[string]map[string]bool // files to change: for each snapshot ID, their names without crypt.Suffix
	bytes  map[inode]uint64           // bytes that the files to change take on the disk
	others []string                   // see Result.Others

	keyID string
	key   crypt.Key
	done  map[inode]string // for each file that was changed, the path of its new form
}

// names returns the names of all files of a snapshot except its manifest, with the IDs of the
// snapshots that own them.
func names(m *snapshot.Manifest) map[string]string {
	all := map[string]string{snapshot.StateFile: m.ID, snapshot.MemoryMapFile: m.ID}
	for _, l := range m.Memory {
		all[snapshot.LayerFile(snapshot.MemoryLayerFile, m.ID, l.Owner)] = l.Owner
	}
	if m.Disk != nil {
		for _, l := range m.Disk.Layers {
			all[snapshot.LayerFile(snapshot.DiskLayerFile, m.ID, l.Owner)] = l.Owner
		}
	}
	return all
}

// count finds the files that have the given suffix and belong only to this family.
func (w *work) count(suffix string) error {
	w.todo, w.bytes, w.done = map[string]map[string]bool{}, map[inode]uint64{}, map[inode]string{}
	w.others = nil
	type file struct {
		member      store.Member
		name, owner string
	}
	links, files := map[inode]uint64{}, map[inode][]file{}
	has := map[inode]unix.Stat_t{}
	ours := map[string]bool{}
	for _, m := range w.family {
		if m.Manifest.DiskOnly() {
			return &store.EncryptedError{Tag: m.Tag, Reason: "has a disk and no memory; such snapshots cannot be encrypted"}
		}
		if len(m.Manifest.Volumes) > 0 { // their layers are also files of the volume, which stay unencrypted
			return &store.EncryptedError{Tag: m.Tag, Reason: "has volumes; such snapshots cannot be encrypted"}
		}
		ours[m.ID], w.todo[m.ID] = true, map[string]bool{}
		for name, owner := range names(m.Manifest) {
			var st unix.Stat_t
			err := unix.Lstat(filepath.Join(m.Dir, name+suffix), &st)
			if errors.Is(err, unix.ENOENT) { // the file is already in the other form
				continue
			}
			if err != nil {
				return err
			}
			i := inode{st.Dev, st.Ino}
			links[i]++
			has[i], files[i] = st, append(files[i], file{m, name, owner})
		}
	}
	for i, list := range files {
		if has[i].Nlink <= links[i] {
			w.bytes[i] = uint64(has[i].Blocks) * 512 // st_blocks counts units of 512 bytes, stat(2)
			for _, f := range list {
				w.todo[f.member.ID][f.name] = true
			}
			continue
		}
		if ours[list[0].owner] { // a sandbox that the store does not know may have the other links, for example
			return &store.EncryptedError{Tag: list[0].member.Tag, Reason: fmt.Sprintf("its file %s has %d other links, which "+
				"would keep the old content: end the sandboxes that come from it", list[0].name, has[i].Nlink-links[i])}
		}
		w.others = append(w.others, w.nameOf(list[0].owner))
	}
	slices.Sort(w.others)
	w.others = slices.Compact(w.others)
	return nil
}

// nameOf returns the tag of a snapshot, or its ID if it has no tag any more.
func (w *work) nameOf(id string) string {
	if tag := w.cfg.Store.TagOf(id); tag != "" {
		return tag
	}
	return id
}

// room returns an error if the disk has too little room for the changed files. The old files are
// removed only later.
func (w *work) room() error {
	need := uint64(0)
	for _, n := range w.bytes {
		need += n
	}
	free, err := w.cfg.Store.Room()
	if err == nil && need > free {
		err = fmt.Errorf("it needs %d MiB, %d MiB are left: %w", need>>20, free>>20, unix.ENOSPC)
	}
	return err
}

// encrypt encrypts the files of one snapshot.
func (w *work) encrypt(m store.Member) (err error) {
	if w.keyID == "" {
		if w.keyID, w.key, err = w.cfg.Vault.New(w.ctx); err != nil {
			return err
		}
	}
	return w.cfg.Store.Rewrite(m.Tag, m.ID, func(from, to string) error {
		keys := append(slices.Clone(m.Keys), w.keyID)
		p, err := record.EncodeEncryption(&record.Encryption{SnapshotID: m.ID, Keys: keys})
		if err == nil {
			err = atomicfile.WriteDurable(filepath.Join(to, store.EncryptionFile), p, 0o600)
		}
		if err != nil {
			return err
		}
		return w.each(m, from, to, crypt.Suffix, func(name string, src, dst *os.File) error {
			return vault.Encrypt(w.ctx, dst, src, w.keyID, &w.key, snapshot.PortableName(name, m.ID))
		})
	})
}

// decrypt decrypts the files of one snapshot.
func (w *work) decrypt(m store.Member, from, to string) error {
	return w.each(m, from, to, "", func(name string, src, dst *os.File) error {
		r, key, err := w.cfg.Vault.Reader(w.ctx, src, snapshot.PortableName(name, m.ID))
		if err != nil {
			return err
		}
		return vault.Fill(dst, r, &key)
	})
}

// each writes the files of one snapshot from one directory to another. It calls change for each
// file that must change, and adds the suffix to the name of its new form. It links all other files.
func (w *work) each(m store.Member, from, to, suffix string,
	change func(name string, src, dst *os.File) error) error {
	manifest, err := os.ReadFile(filepath.Join(from, snapshot.ManifestFile))
	if err == nil {
		err = atomicfile.WriteDurable(filepath.Join(to, snapshot.ManifestFile), manifest, 0o600)
	}
	if err != nil {
		return err
	}
	for name := range names(m.Manifest) {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if !w.todo[m.ID][name] {
			err = linkAny(from, to, name)
		} else if suffix == "" {
			err = w.convert(m, filepath.Join(from, name+crypt.Suffix), filepath.Join(to, name), name, change)
		} else {
			err = w.convert(m, filepath.Join(from, name), filepath.Join(to, name+suffix), name, change)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// linkAny links a file in its present form.
func linkAny(from, to, name string) error {
	err := hardlink.Link(filepath.Join(from, name), filepath.Join(to, name))
	if errors.Is(err, unix.ENOENT) {
		err = hardlink.Link(filepath.Join(from, name+crypt.Suffix), filepath.Join(to, name+crypt.Suffix))
	}
	return err
}

// convert converts one file. Its old form is at the first path, and its new form is at the second
// path. If the file was already converted for another snapshot of the family, convert makes a link
// to the result.
func (w *work) convert(m store.Member, from, to, name string,
	change func(name string, src, dst *os.File) error) error {
	src, err := os.OpenFile(from, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer src.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &st); err != nil {
		return err
	}
	i := inode{st.Dev, st.Ino}
	if made := w.done[i]; made != "" && os.Link(made, to) == nil {
		return nil
	}
	dst, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(change(name, src, dst), dst.Sync(), dst.Close()); err != nil {
		return err
	}
	w.done[i] = filepath.Join(m.Dir, filepath.Base(to)) // path of the new form after the snapshot's rewrite
	return nil
}
