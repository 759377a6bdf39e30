package pid1

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAForkRewritesIDsAndKeepsWhatUsersAddedToHosts(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	open := func(name, content string) int {
		fd, err := newIDFile(path(name), 0o644, []byte(content))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	line := newHostsLine([]byte("a-rather-long-parent"))
	random, err := unix.Open("/dev/urandom", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(random) })
	f := idFiles{random: random, machineID: open("machine-id", ""), bootID: open("boot_id", ""),
		hosts: open("hosts", string(line[:])+hostsDefault+"10.0.0.1 db\n")}
	read := func(name string) string {
		b, err := os.ReadFile(path(name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	write := func(hostname string) (machineID, bootID string) {
		t.Helper()
		if err := f.write([]byte(hostname)); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(strings.Fields(read("hosts")), " "); got !=
			"127.0.1.1 "+hostname+" 127.0.0.1 localhost ::1 localhost ip6-localhost ip6-loopback 10.0.0.1 db" {
			t.Errorf("hosts: %s", got)
		}
		return read("machine-id"), read("boot_id")
	}
	m1, b1 := write("sb-1")
	m2, b2 := write("sb-2")
	m3, b3 := write("sb-1")
	if m1 == m2 || m1 != m3 {
		t.Errorf("machine ids of sb-1, sb-2 and sb-1 again: %q %q %q", m1, m2, m3)
	}
	if err := f.rehearse(); err != nil || read("machine-id") != m3 || read("boot_id") != b3 ||
		!strings.HasPrefix(read("hosts"), "127.0.1.1 sb-1 ") {
		t.Errorf("after a rehearsal: %q %q %q, %v", read("machine-id"), read("boot_id"), read("hosts"), err)
	}
	if b1 == b2 || b1 == b3 || b2 == b3 {
		t.Errorf("boot ids: %q %q %q", b1, b2, b3)
	}
	if !regexp.MustCompile(`^[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}\n$`).MatchString(m1) {
		t.Errorf("machine id %q", m1)
	}
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\n$`).MatchString(b1) {
		t.Errorf("boot id %q", b1)
	}
	write(strings.Repeat("x", maxHostname))
	// If the user has written the first line, the line stays unchanged.
	const own = "192.0.2.1 mine"
	if err := os.WriteFile(path("hosts"), []byte(own), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := f.write([]byte("sb-3")); err != nil || read("hosts") != own {
		t.Errorf("hosts %q, %v", read("hosts"), err)
	}
	if err := (idFiles{random: -1, machineID: -1, bootID: -1, hosts: -1}).write([]byte("sb-4")); err != nil {
		t.Error(err)
	}
}
