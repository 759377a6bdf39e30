// Package sftpd is the code of forkd-sftp: an SFTP server on standard input and output. The daemon
// copies the program into a guest at the first SFTP session over SSH, and runs it there as the
// account of the session. So a client has the rights of that account, and the guest needs no
// program of OpenSSH.
//
// The program serves one session and exits at its end. It is not part of the agent, because most guests
// never serve SFTP.
package sftpd

import (
	"fmt"
	"io"
	"os"

	"github.com/pkg/sftp"
)

// Main serves a session until the end of standard input, and returns the exit code.
func Main() int {
	server, err := sftp.NewServer(struct {
		io.Reader
		io.WriteCloser
	}{os.Stdin, os.Stdout})
	if err == nil {
		err = server.Serve()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "forkd-sftp: %v\n", err)
		return 1
	}
	return 0
}
