// Command docker connects its standard streams to a unix socket. The compat group docker runs it in
// the emulated host, so that clients on this host reach the Docker socket of the daemon there. It
// knows nothing of Docker's protocol.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "docker: want the path of a unix socket")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "docker:", err)
		os.Exit(1)
	}
}

func run(path string) error {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	defer conn.Close()
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, os.Stdin)
		sent <- errors.Join(err, conn.CloseWrite())
	}()
	// The program exits at the end of the daemon's data, even if its standard input is still open.
	if _, err := io.Copy(os.Stdout, conn); err != nil {
		return err
	}
	select {
	case err := <-sent:
		return err
	default:
		return nil
	}
}
