package atrest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vault"
)

// If killedEnv is set, the test program acts as a daemon that is killed. The value is "VERB TAG
// STATE RAM KEY".
const killedEnv = "FORKD_ATREST_KILLED"

func TestMain(m *testing.M) {
	if args := strings.Fields(os.Getenv(killedEnv)); len(args) == 5 {
		w := &world{t: new(testing.T), state: args[2], ram: args[3], key: args[4]}
		w.open()
		fmt.Println("ready")
		_, err := map[string]func() (Result, error){
			"encrypt": func() (Result, error) { return w.Encrypt(ctx, args[1]) },
			"decrypt": func() (Result, error) { return w.Decrypt(ctx, args[1]) },
			"shred":   func() (Result, error) { return w.Shred(ctx, args[1]) },
		}[args[0]]()
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// killed runs a call in another process, and kills the process after a delay. It reports whether
// the call ended before the kill.
func (w *world) killed(verb, tag string, delay time.Duration) (ended bool) {
	w.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), killedEnv+"="+strings.Join([]string{verb, tag, w.state, w.ram, w.key}, " "))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		w.t.Fatal(err)
	}
	time.AfterFunc(delay, func() { _ = cmd.Process.Kill() })
	said, _ := io.ReadAll(out)
	err = cmd.Wait()
	if e := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &e) || e.ExitCode() != -1) {
		w.t.Fatalf("%s: %v: %s", verb, err, said)
	}
	return err == nil
}

// No matter when a daemon is killed, each snapshot is afterwards either encrypted or unencrypted.
// The next call completes the work.
func TestKilled(t *testing.T) {
	w := newWorld(t)
	w.make("parent", "")
	w.make("a", "parent")
	if err := w.store.Close(); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"encrypt", "decrypt"} {
		kills := 0
		for delay := time.Duration(0); ; delay += 2 * time.Millisecond {
			ended := w.killed(verb, "parent", delay)
			w.open()
			w.holds("parent")
			w.holds("a")
			if left, err := os.ReadDir(filepath.Join(w.state, "staging")); err != nil || len(left) > 0 {
				t.Errorf("staging has %v: %v", left, err)
			}
			for _, tag := range []string{"parent", "a"} {
				i, err := w.store.Info(tag)
				if err != nil {
					t.Fatal(err)
				}
				// Until the call ends, an unencrypted branch may have layers of an encrypted
				// parent.
				if files := w.plain(tag); ended && i.Encrypted && len(files) > 0 {
					t.Errorf("%s is in clear in %v", tag, files)
				}
				if ended && i.Encrypted != (verb == "encrypt") {
					t.Errorf("%s ended, encrypted: %v", verb, i.Encrypted)
				}
			}
			if err := w.store.Close(); err != nil {
				t.Fatal(err)
			}
			if ended {
				break
			}
			kills++
		}
		t.Logf("%s was killed %d times", verb, kills)
	}
	// Calls that were killed may have left keys that no snapshot has.
	if err := os.RemoveAll(filepath.Join(w.state, "keys")); err != nil {
		t.Fatal(err)
	}
	if !w.killed("encrypt", "parent", time.Hour) {
		t.Fatal("not encrypted")
	}
	for delay := time.Duration(0); ; delay += time.Millisecond / 2 {
		ended := w.killed("shred", "parent", delay)
		w.open()
		if ended {
			if n := len(w.store.List()); n > 0 || w.keys() > 0 {
				t.Errorf("%d snapshots and %d keys are left", n, w.keys())
			}
			break
		}
		if _, err := w.store.Acquire("parent"); errors.Is(err, vault.ErrDestroyed) { // only the deletion is missing
			t.Logf("killed after %v, between the key and the files", delay)
		} else if none := (*store.NotFoundError)(nil); err != nil && !errors.As(err, &none) {
			if no := (*vault.KeyError)(nil); !errors.As(err, &no) { // the key was overwritten
				t.Errorf("killed after %v: %v", delay, err)
			}
		}
		gone := len(w.store.List()) == 0
		if err := w.store.Close(); err != nil {
			t.Fatal(err)
		}
		if gone {
			w.open()
			break
		}
	}
}

// On a full disk, an encryption fails and changes nothing.
func TestFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size="+strconv.Itoa(20<<20)); err != nil {
		t.Skipf("mount a small disk: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	w := newWorld(t)
	if err := w.store.Close(); err != nil {
		t.Fatal(err)
	}
	w.state = filepath.Join(disk, "state")
	w.open()
	w.make("a", "")
	fill := filepath.Join(disk, "fill")
	for size := int64(1 << 20); ; size -= 4096 { // from a full disk to one with room for some of the files
		var st unix.Statfs_t
		if err := unix.Statfs(disk, &st); err != nil {
			t.Fatal(err)
		}
		os.Remove(fill)
		f, err := os.Create(fill)
		if err == nil {
			err = unix.Statfs(disk, &st)
		}
		if err == nil {
			err = unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*st.Bsize-(1<<20-size))
		}
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		r, err := w.Encrypt(ctx, "a")
		w.holds("a")
		if err == nil {
			if len(r.Tags) != 1 || len(w.plain("a")) > 0 {
				t.Errorf("encrypted %v, in clear in %v", r.Tags, w.plain("a"))
			}
			break
		}
		if !errors.Is(err, unix.ENOSPC) || w.keys() > 0 {
			t.Fatalf("%d keys are left: %v", w.keys(), err)
		}
		if left, err := os.ReadDir(filepath.Join(w.state, "staging")); err != nil || len(left) > 0 {
			t.Errorf("staging has %v: %v", left, err)
		}
	}
	if _, err := os.Stat(filepath.Join(w.state, "snapshots", "a", snapshot.StateFile)); !os.IsNotExist(err) {
		t.Errorf("the file in clear: %v", err)
	}
}
