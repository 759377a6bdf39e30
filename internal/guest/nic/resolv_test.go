package nic

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestResolver(t *testing.T) {
	for name, c := range map[string]struct {
		text string // content of the image's file; "-" means that the file is missing
		kept bool
	}{
		"none":         {"-", false},
		"empty":        {"", false},
		"comment":      {"# nameserver 10.0.0.1\n", false},
		"stub":         {"nameserver 127.0.0.53\noptions edns0\n", false},
		"IPv6":         {"nameserver fd00::1\n", false},
		"zero":         {"nameserver 0.0.0.0\n", false},
		"its own":      {"search example.com\nnameserver 10.1.1.1\n", true},
		"stub and own": {"nameserver 127.0.0.53\n nameserver\t10.1.1.1", true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "etc", "resolv.conf")
			want := resolvConf
			if c.text != "-" {
				if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if c.kept {
				want = c.text
			}
			for range 2 {
				if err := setResolver(path, "/dev/null/unused"); err != nil {
					t.Fatal(err)
				}
				if got, err := os.ReadFile(path); err != nil || string(got) != want {
					t.Errorf("%q, %v; want %q", got, err, want)
				}
			}
		})
	}
}

// A link whose target is missing is replaced with a file. Some images have a link to the file of a
// program that does not run in the guest.
func TestResolverReplacesADanglingLink(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.Symlink("../run/systemd/resolve/stub-resolv.conf", path); err != nil {
		t.Fatal(err)
	}
	if err := setResolver(path, "/dev/null/unused"); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		t.Errorf("%v, %v", info, err)
	}
}

func TestResolverOnAReadOnlyDisk(t *testing.T) {
	inNamespaces(t, func(t *testing.T, _ net.Listener) {
		disk := t.TempDir()
		path, run := filepath.Join(disk, "resolv.conf"), filepath.Join(t.TempDir(), "run", "resolv.conf")
		if err := unix.Mount("tmpfs", disk, "tmpfs", 0, ""); err != nil {
			t.Error(err)
			return
		}
		err := os.WriteFile(path, nil, 0o644)
		if rerr := unix.Mount("", disk, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil || rerr != nil {
			t.Error(err, rerr)
		}
		if err := setResolver(path, run); err != nil {
			t.Error(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != resolvConf {
			t.Errorf("%q, %v", got, err)
		}
	})
}
