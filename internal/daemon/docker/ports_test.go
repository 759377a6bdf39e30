package docker

import (
	"context"
	"net"
	"strconv"
	"testing"
)

// bare returns a Server that has no sandboxes, and a function that ends its life.
func bare() (*Server, context.CancelCauseFunc) {
	s := &Server{}
	s.life, s.end = context.WithCancelCause(context.Background())
	return s, s.end
}

// freePort returns a port of this host that is free at the moment.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", loopback+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

func publishing(port string) *spec {
	return &spec{Host: host{PortBindings: map[string][]binding{"80/tcp": {{HostPort: port}}}}}
}

// isOpen reports whether a program listens at a port.
func isOpen(port string) bool {
	l, err := net.Listen("tcp", net.JoinHostPort(loopback, port))
	if err == nil {
		l.Close()
	}
	return err != nil
}

// A container that is removed, or a daemon that stops, while a start opens ports leaves none open.
func TestPortsOpenedTooLate(t *testing.T) {
	port := freePort(t)
	s, end := bare()
	gone := newContainer("sb-gone")
	gone.gone = true
	if err := s.openPorts(gone, publishing(port)); err == nil || isOpen(port) {
		t.Errorf("a removed container: %v", err)
	}
	c := newContainer("sb-late")
	if err := s.openPorts(c, publishing(port)); err != nil || !isOpen(port) {
		t.Fatalf("a container: %v", err)
	}
	end(nil)
	s.tasks.Wait() // nothing else closes the port
	if isOpen(port) {
		t.Error("the port is open after the daemon's stop")
	}
	if err := s.openPorts(c, publishing(port)); err == nil || isOpen(port) {
		t.Errorf("after the daemon's stop: %v", err)
	}
}
