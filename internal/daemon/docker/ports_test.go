package docker

import (
	"context"
	"errors"
	"net"
	"strconv"
	"testing"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/gate"
)

// bare returns a Server that has no sandboxes, and a function that ends its life.
func bare() (*Server, context.CancelCauseFunc) {
	s := &Server{listeners: gate.New(maxListeners)}
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

// If a container is removed, or the daemon stops, while a start opens ports, no port stays open.
func TestPortsOpenedTooLate(t *testing.T) {
	port := freePort(t)
	s, end := bare()
	gone := newContainer("sb-gone")
	gone.gone = true
	if err := s.openPorts(gone, "token:ann", publishing(port)); err == nil || isOpen(port) {
		t.Errorf("a removed container: %v", err)
	}
	c := newContainer("sb-late")
	if err := s.openPorts(c, "token:ann", publishing(port)); err != nil || !isOpen(port) {
		t.Fatalf("a container: %v", err)
	}
	end(nil)
	s.tasks.Wait() // nothing else closes the port
	if isOpen(port) {
		t.Error("the port is open after the daemon's stop")
	}
	if err := s.openPorts(c, "token:ann", publishing(port)); err == nil || isOpen(port) {
		t.Errorf("after the daemon's stop: %v", err)
	}
}

// Only an administrator can publish ports that other users of the host are not allowed to open.
func TestLowPorts(t *testing.T) {
	run, admin := auth.Principal{Who: "token:ann", Scope: auth.Run}, auth.Principal{Who: "token:root", Scope: auth.Admin}
	for port, refused := range map[string]bool{"": false, "0": false, "1": true, "0080": true, "1023": true, "1024": false,
		"8080": false} {
		list := []publication{{port: 80}, {port: 81, binding: binding{HostPort: port}}}
		err := mayPublish(run, list, 1024)
		var scope *auth.ScopeError
		if errors.As(err, &scope) != refused || (err == nil) == refused {
			t.Errorf("%q with the scope run: %v", port, err)
		}
		if err := mayPublish(admin, list, 1024); err != nil {
			t.Errorf("%q with the scope admin: %v", port, err)
		}
	}
}

// One owner cannot take all published ports, and closed ports can be used again.
func TestListenersAreShared(t *testing.T) {
	s, end := bare()
	defer s.tasks.Wait()
	defer end(nil)
	s.listeners = gate.New(maxListeners)
	most := gate.Fair(maxListeners)
	hold := s.listeners.Hold(gate.Share{Key: "token:ann"})
	if err := hold.Add(most - 1); err != nil {
		t.Fatal(err)
	}
	two := &spec{Host: host{PortBindings: map[string][]binding{"80/tcp": nil, "81/tcp": nil}}}
	c := newContainer("sb-a")
	if err := s.openPorts(c, "token:ann", two); err == nil {
		t.Error("an owner has more ports than its share")
	}
	if err := s.openPorts(c, "token:ben", two); err != nil {
		t.Errorf("another owner: %v", err)
	}
	c.closePorts()
	if taken, _ := s.listeners.Count(); taken != most-1 {
		t.Errorf("%d places are taken after the end, want %d", taken, most-1)
	}
}

// If the host chooses the port of a publication, the publication keeps its own earlier address.
// Other publications do not.
func TestKeepChosen(t *testing.T) {
	wanted := []publication{{port: 80}, {port: 80}, {port: 80, binding: binding{HostPort: "8080"}}, {port: 80},
		{port: 81, binding: binding{HostIP: loopback6, HostPort: "0"}}, {port: 82}, {port: 83}}
	keepChosen(wanted, []record.ContainerPort{{Port: 80, Address: "127.0.0.1:1001"}, {Port: 80, Address: "127.0.0.1:1002"},
		{Port: 81, Address: "[::1]:1003"}, {Port: 82, Address: "0.0.0.0:1004"}, {Port: 83, Address: "damaged"}})
	for n, want := range []string{"127.0.0.1:1001", "127.0.0.1:1002", "", "", "[::1]:1003", "", ""} {
		if wanted[n].before != want {
			t.Errorf("publication %d: %q, want %q", n, wanted[n].before, want)
		}
	}
}
