// Command forkd-sftp is the SFTP server that runs in guests, for one session of a client over SSH.
// Package sftpd has the code, and package sshd puts the program into guests.
package main

import (
	"os"

	"github.com/forkd/forkd/internal/guest/sftpd"
)

func main() { os.Exit(sftpd.Main()) }
