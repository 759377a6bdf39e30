package rawcall

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSockets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err == nil {
		defer unix.Close(listener)
		if err = unix.Bind(listener, &unix.SockaddrUnix{Name: path}); err == nil {
			err = unix.Listen(listener, 1)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Accept(listener); err != unix.EAGAIN {
		t.Fatalf("accept without a client: %v", err)
	}
	client, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(client)
		err = unix.Connect(client, &unix.SockaddrUnix{Name: path})
	}
	if err != nil {
		t.Fatal(err)
	}
	conn, err := Accept(listener)
	if err != nil {
		t.Fatal(err)
	}
	var p [8]byte
	if err := SetReadTimeout(conn, unix.NsecToTimeval(1e6)); err != nil {
		t.Fatal(err)
	}
	_, err = Read(conn, p[:])
	for err == unix.EINTR { // by a signal of the runtime's
		_, err = Read(conn, p[:])
	}
	if err != unix.EAGAIN {
		t.Errorf("a read that gets nothing: %v", err)
	}
	if n, err := Write(conn, []byte("hello")); n != 5 || err != nil {
		t.Errorf("write: %d, %v", n, err)
	}
	if n, err := Read(client, p[:]); err != nil || string(p[:n]) != "hello" {
		t.Errorf("read %q, %v", p[:max(n, 0)], err)
	}
	if err := Close(conn); err != nil {
		t.Error(err)
	}
	if n, err := Read(client, p[:]); n != 0 || err != nil {
		t.Errorf("after the other end was closed: %d, %v", n, err)
	}
	if err := Close(conn); err != unix.EBADF {
		t.Errorf("closed twice: %v", err)
	}
}

func TestFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if Exists(path) {
		t.Error("a missing file exists")
	}
	if err := os.WriteFile(path, []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	long := filepath.Dir(path) + strings.Repeat("/.", usualPath) + "/f"
	if !Exists(path) || !Exists(long) {
		t.Error("a file does not exist")
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd := int(f.Fd())
	if n, err := Pwrite(fd, []byte("ab"), 4); n != 2 || err != nil {
		t.Errorf("pwrite: %d, %v", n, err)
	}
	if n, err := Pwrite(fd, nil, 4); n != 0 || err != nil {
		t.Errorf("pwrite of nothing: %d, %v", n, err)
	}
	var p [4]byte
	if n, err := Pread(fd, p[:], 3); err != nil || string(p[:n]) != "3ab6" {
		t.Errorf("pread: %q, %v", p[:max(n, 0)], err)
	}
}

// fionbio makes a descriptor wait no more, by a pointer to an int (asm-generic/ioctls.h).
const fionbio = 0x5421

func TestIoctlInt(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	if err := IoctlInt(pipe[0], fionbio, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(pipe[0], make([]byte, 1)); err != unix.EAGAIN {
		t.Errorf("read from an empty pipe that does not wait: %v", err)
	}
}
