// Package vault keeps the keys of encrypted snapshots, and decrypts their files into RAM.
//
// Each key is wrapped, that is, encrypted with the secret of --key-file or by the program of
// --kms-command. Only wrapped keys are on the disk. The vault keeps an unwrapped key in memory for a
// minute. Decrypted files are on a RAM file system and have no names, so they disappear with the
// last process that has them open.
//
// It does not know which snapshots are encrypted. Package atrest encrypts snapshots.
package vault

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/crypt"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/record"
)

// Config configures a Vault.
type Config struct {
	Dir     string   // directory of the wrapped keys, which Open creates if missing
	RAM     string   // directory on a RAM file system, for decrypted files
	KeyFile string   // file with the secret that wraps keys; empty: none
	Command []string // program that wraps keys, with its arguments; empty: none
	Env     []string // names of variables that the program gets, in addition to PATH, HOME and LANG

	AnyDisk bool // accept a directory RAM that is not on a RAM file system; only for tests
}

// Vault holds keys. Its methods may be called concurrently.
type Vault struct {
	cfg  Config
	time time.Duration // limit of a run of the command
	keep time.Duration // how long a key stays in memory

	mu sync.Mutex
	// +checklocks:mu
	known map[string]crypt.Key // keys that were unwrapped recently, by ID
	// +checklocks:mu
	silent time.Time // when the command last gave no answer in time
}

// Limits of a Vault.
const (
	commandTime = 30 * time.Second
	keepTime    = time.Minute
	silentTime  = 10 * time.Second // how long the command is not run again after it gave no answer
	maxRecord   = 64 << 10         // bytes of the record of a key
)

// KeyError reports that a key cannot be used, and why.
type KeyError struct {
	ID  string // may be empty
	Err error
}

func (e *KeyError) Error() string {
	if e.ID == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("key %s: %v", e.ID, e.Err)
}

func (e *KeyError) Unwrap() error { return e.Err }

// RoomError reports that a decrypted file does not fit into RAM.
type RoomError struct {
	Dir   string
	Bytes uint64 // size of the file's data
}

func (e *RoomError) Error() string {
	return fmt.Sprintf("%d MiB do not fit into %s: an encrypted snapshot is decrypted into RAM; end sandboxes, or give "+
		"the daemon a larger --ram-dir", (e.Bytes+1<<20-1)>>20, e.Dir)
}

// ErrDestroyed reports that a key is not in the vault.
var ErrDestroyed = errors.New("it was destroyed ('forkd shred'), or its file is missing; without it the snapshot cannot " +
	"be decrypted")

// Open opens the vault.
func Open(cfg Config) (*Vault, error) {
	if cfg.KeyFile != "" && len(cfg.Command) > 0 {
		return nil, errors.New("--key-file and --kms-command exclude each other")
	}
	if len(cfg.Env) > 0 && len(cfg.Command) == 0 {
		return nil, errors.New("--kms-env needs --kms-command")
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := checkKeyFile(&cfg); err != nil {
		return nil, err
	}
	return &Vault{cfg: cfg, time: commandTime, keep: keepTime, known: make(map[string]crypt.Key)},
		atomicfile.Clean(cfg.Dir)
}

func (v *Vault) path(id string) string { return filepath.Join(v.cfg.Dir, id+".json") }

var errNoSecret = &KeyError{Err: errors.New("this daemon cannot encrypt: start it with --key-file or --kms-command")}

// New makes a key. When it returns, the wrapped key is on disk, and was unwrapped once as a test.
func (v *Vault) New(ctx context.Context) (id string, key crypt.Key, err error) {
	id = crypt.NewID()
	_, _ = rand.Read(key[:]) // never fails
	rec := record.Key{ID: id, Created: time.Now().UTC(), Check: checkOf(&key)}
	var wrapped []byte
	switch {
	case v.cfg.KeyFile != "":
		rec.Wrap = record.WrapFile
		wrapped, err = v.wrapByFile(id, &key)
	case len(v.cfg.Command) > 0:
		rec.Wrap = record.WrapCommand
		wrapped, err = v.run(ctx, "wrap", id, key[:])
	default:
		return "", key, errNoSecret
	}
	if err != nil {
		return "", key, &KeyError{Err: err}
	}
	rec.Wrapped = base64.StdEncoding.EncodeToString(wrapped)
	if _, err := v.unwrap(ctx, &rec); err != nil { // a key that cannot be unwrapped would lose the snapshot
		return "", key, &KeyError{Err: fmt.Errorf("test of a new key: %w", err)}
	}
	p, err := record.EncodeKey(&rec)
	if err == nil {
		err = atomicfile.WriteDurable(v.path(id), p, 0o600)
	}
	if err != nil {
		return "", key, err
	}
	return id, key, nil
}

// Key unwraps a key. If that is impossible, the error is a *KeyError.
func (v *Vault) Key(ctx context.Context, id string) (key crypt.Key, err error) {
	v.mu.Lock()
	key, ok := v.known[id]
	v.mu.Unlock()
	if ok {
		return key, nil
	}
	if key, err = v.read(ctx, id); err != nil {
		return key, &KeyError{ID: id, Err: err}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, err := os.Lstat(v.path(id)); err != nil { // destroyed while it was unwrapped
		return crypt.Key{}, &KeyError{ID: id, Err: ErrDestroyed}
	}
	v.known[id] = key
	time.AfterFunc(v.keep, func() { v.forget(id) })
	return key, nil
}

// read reads and unwraps a key.
func (v *Vault) read(ctx context.Context, id string) (key crypt.Key, err error) {
	if err := crypt.CheckID(id); err != nil { // the ID becomes a file name
		return key, err
	}
	p, err := readRecord(v.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return key, ErrDestroyed
	}
	if err != nil {
		return key, err
	}
	rec, err := record.ParseKey(v.path(id), p)
	if err == nil && rec.ID != id {
		err = fmt.Errorf("%s is the record of key %.40q", v.path(id), rec.ID)
	}
	if err != nil {
		return key, err
	}
	return v.unwrap(ctx, rec)
}

func readRecord(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxRecord))
}

func (v *Vault) forget(id string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.known, id)
}

// unwrap returns the key in a record.
func (v *Vault) unwrap(ctx context.Context, rec *record.Key) (key crypt.Key, err error) {
	wrapped, err := base64.StdEncoding.DecodeString(rec.Wrapped)
	if err != nil {
		return key, fmt.Errorf("its record is damaged: %w", err)
	}
	var plain []byte
	switch {
	case rec.Wrap == record.WrapFile && v.cfg.KeyFile != "":
		plain, err = v.unwrapByFile(rec.ID, wrapped)
	case rec.Wrap == record.WrapCommand && len(v.cfg.Command) > 0:
		plain, err = v.run(ctx, "unwrap", rec.ID, wrapped)
	case rec.Wrap == record.WrapFile:
		err = errors.New("it was wrapped by a key file: start the daemon with the same --key-file")
	case rec.Wrap == record.WrapCommand:
		err = errors.New("it was wrapped by a program: start the daemon with the same --kms-command")
	default:
		err = fmt.Errorf("it was wrapped by %.40q, which this forkd does not know", rec.Wrap)
	}
	if err != nil {
		return key, err
	}
	if len(plain) != len(key) {
		return key, fmt.Errorf("unwrapping it gave %d bytes, want %d", len(plain), len(key))
	}
	copy(key[:], plain)
	if !hmac.Equal([]byte(checkOf(&key)), []byte(rec.Check)) {
		return crypt.Key{}, errors.New("unwrapping it gave another key")
	}
	return key, nil
}

// checkOf returns a text by which a wrong key is detected. It does not reveal the key.
func checkOf(key *crypt.Key) string {
	mac := hmac.New(sha256.New, key[:])
	mac.Write([]byte("forkd check of a key"))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// Destroy removes a key. When it returns nil, the directory no longer has the wrapped key. A missing
// key is no error.
func (v *Vault) Destroy(id string) error {
	if err := crypt.CheckID(id); err != nil {
		return err
	}
	err := overwrite(v.path(id))
	if err == nil {
		err = os.Remove(v.path(id))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("destroy key %s: %w", id, err)
	}
	v.forget(id) // after the removal, see Key
	return atomicfile.SyncDir(v.cfg.Dir)
}

// overwrite replaces the bytes of a file in place, on file systems that write in place.
func overwrite(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err == nil {
		junk := make([]byte, min(st.Size(), maxRecord))
		_, _ = rand.Read(junk) // never fails
		_, err = f.WriteAt(junk, 0)
	}
	return errors.Join(err, f.Sync(), f.Close())
}

// Decrypt decrypts a file of a snapshot into RAM. The header of the file must have the given name.
// The function hasRoom reports whether RAM has room for a number of bytes. The error is a
// *KeyError, a *RoomError, or concerns the file itself.
func (v *Vault) Decrypt(ctx context.Context, enc *os.File, name string, hasRoom func(bytes uint64) bool) (
	*os.File, error) {
	r, key, err := v.Reader(ctx, enc, name)
	if err != nil {
		return nil, err
	}
	if err := v.checkRAM(); err != nil {
		return nil, err
	}
	if !hasRoom(r.Data) {
		return nil, &RoomError{Dir: v.cfg.RAM, Bytes: r.Data}
	}
	fd, err := unix.Open(v.cfg.RAM, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o400)
	if err != nil {
		return nil, fmt.Errorf("make a file in %s: %w", v.cfg.RAM, err)
	}
	out := os.NewFile(uintptr(fd), filepath.Join(v.cfg.RAM, name))
	defer out.Close()
	if err := Fill(out, r, &key); errors.Is(err, unix.ENOSPC) {
		return nil, &RoomError{Dir: v.cfg.RAM, Bytes: r.Data}
	} else if err != nil {
		return nil, err
	}
	return disklayer.Reopen(out) // VMMs get this descriptor: it must not be open for writing
}

// Reader returns a reader of an encrypted file, and the key for it.
func (v *Vault) Reader(ctx context.Context, enc *os.File, name string) (*crypt.Reader, crypt.Key, error) {
	r, err := crypt.NewReader(io.NewSectionReader(enc, 0, 1<<62))
	if err == nil && r.Name != name {
		err = fmt.Errorf("%w: it is %.80q, not %q", crypt.ErrChanged, r.Name, name)
	}
	if err != nil {
		return nil, crypt.Key{}, err
	}
	key, err := v.Key(ctx, r.KeyID)
	return r, key, err
}

// checkRAM returns an error if decrypted files would get onto a disk.
func (v *Vault) checkRAM() error {
	var st unix.Statfs_t
	if err := unix.Statfs(v.cfg.RAM, &st); err != nil {
		return err
	}
	if st.Type != unix.TMPFS_MAGIC && st.Type != unix.RAMFS_MAGIC && !v.cfg.AnyDisk {
		return fmt.Errorf("--ram-dir %s is not on tmpfs: decrypted files would get onto a disk", v.cfg.RAM)
	}
	return nil
}

// Fill writes the decrypted content of a file to the empty file out. Holes stay holes.
func Fill(out *os.File, r *crypt.Reader, key *crypt.Key) error {
	if err := out.Truncate(int64(r.Bytes)); err != nil {
		return err
	}
	return r.Decode(key, func(at uint64, p []byte) error {
		_, err := out.WriteAt(p, int64(at))
		return err
	})
}

// ParseCommand splits the text of --kms-command at spaces.
func ParseCommand(text string) ([]string, error) {
	args := strings.Fields(text)
	if text != "" && !filepath.IsAbs(cmp.Or(append(args, "")[0], "")) {
		return nil, fmt.Errorf("--kms-command %q: want the absolute path of a program, and its arguments", text)
	}
	return args, nil
}
