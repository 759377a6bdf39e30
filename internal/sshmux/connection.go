package sshmux

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/forkd/forkd/internal/proto/sshproto"
)

// maxAttempts bounds the number of keys that a client may try, as in OpenSSH.
const maxAttempts = 6

// connection is the connection of the client.
type connection struct {
	control    *sshproto.Control
	signatures chan *sshproto.Signature
	admissions chan *sshproto.Admit
	pings      chan struct{} // Pings of the daemon, which sends the next Ping only after the Pong

	mu sync.Mutex
	// +checklocks:mu
	asked map[uint32]chan<- answer // where to send the daemon's decision about a channel, by the channel's id
}

// answer is the daemon's decision about a channel.
type answer struct {
	stream  *sshproto.Stream
	refused *sshproto.Refuse // nil if the channel was accepted
}

func newConnection(control *sshproto.Control) *connection {
	return &connection{control: control, signatures: make(chan *sshproto.Signature, 1),
		admissions: make(chan *sshproto.Admit, 1), pings: make(chan struct{}, 1), asked: make(map[uint32]chan<- answer)}
}

// serve speaks SSH until the client leaves.
func (c *connection) serve(client net.Conn, hostKey []byte) error {
	public, err := ssh.ParsePublicKey(hostKey)
	if err != nil {
		return err
	}
	config := &ssh.ServerConfig{
		MaxAuthTries:            maxAttempts,
		ServerVersion:           "SSH-2.0-forkd",
		PublicKeyAuthAlgorithms: ssh.SupportedAlgorithms().PublicKeyAuths,
		// Before a client proves that it has a key, it may ask whether it can log in with the key.
		// The answer is yes for all keys.
		PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
			return &ssh.Permissions{}, nil
		},
		VerifiedPublicKeyCallback: c.login,
	}
	config.AddHostKey(&signer{c, public})
	go c.receive()
	server, channels, requests, err := ssh.NewServerConn(client, config)
	if err != nil {
		return nil // the client has not logged in
	}
	go refuse(requests)
	go c.answerPings(server)
	for id := uint32(1); ; {
		asked, ok := <-channels
		if !ok {
			return nil
		}
		if len(asked.ChannelType()) > sshproto.MaxName || len(asked.ExtraData()) > sshproto.MaxExtra {
			_ = asked.Reject(ssh.Prohibited, "the request is too long") // fails only if the client has left
			continue
		}
		c.open(id, asked)
		id++
	}
}

// send sends a message to the daemon. The process ends when the daemon has closed the control
// socket.
func (c *connection) send(m sshproto.Message) {
	if c.control.Send(m) != nil {
		os.Exit(exitClean)
	}
}

// receive receives messages until the daemon ends the process.
func (c *connection) receive() {
	for {
		m, fd, err := c.control.ReceiveFD()
		if err != nil {
			os.Exit(exitClean)
		}
		switch m := m.(type) {
		case *sshproto.Signature:
			c.signatures <- m
		case *sshproto.Admit:
			c.admissions <- m
		case *sshproto.Accept:
			stream, err := sshproto.OpenStream(fd)
			if err != nil {
				os.Exit(exitProtocol)
			}
			c.decided(m.ID, answer{stream: stream})
		case *sshproto.Refuse:
			c.decided(m.ID, answer{refused: m})
		case *sshproto.Ping:
			c.pings <- struct{}{}
		}
	}
}

func (c *connection) decided(id uint32, a answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if to := c.asked[id]; to != nil {
		delete(c.asked, id)
		to <- a
	}
}

// signer asks the daemon to sign with the host key.
type signer struct {
	c      *connection
	public ssh.PublicKey
}

func (s *signer) PublicKey() ssh.PublicKey { return s.public }

func (s *signer) Sign(random io.Reader, hash []byte) (*ssh.Signature, error) {
	return s.SignWithAlgorithm(random, hash, s.public.Type())
}

// SignWithAlgorithm is never called by two key exchanges at the same time.
func (s *signer) SignWithAlgorithm(_ io.Reader, hash []byte, algorithm string) (*ssh.Signature, error) {
	s.c.send(&sshproto.Sign{Algorithm: algorithm, Hash: hash})
	signed := <-s.c.signatures
	var signature ssh.Signature
	if err := ssh.Unmarshal(signed.Signature, &signature); err != nil {
		return nil, fmt.Errorf("signature of the daemon: %w", err)
	}
	return &signature, nil
}

// login asks the daemon to log in a client. The client has proved that it has the key.
func (c *connection) login(client ssh.ConnMetadata, key ssh.PublicKey, p *ssh.Permissions, _ string) (
	*ssh.Permissions, error) {
	m := &sshproto.Login{User: client.User(), Version: string(client.ClientVersion()), Key: key.Marshal()}
	if max(len(m.User), len(m.Version)) > sshproto.MaxName || len(m.Key) > sshproto.MaxKey {
		return nil, errRefused
	}
	c.send(m)
	admitted := <-c.admissions
	if admitted.OK {
		return p, limitMemory(ClientMemory)
	}
	return nil, &ssh.BannerError{Err: errRefused, Message: admitted.Banner}
}

var errRefused = errors.New("the daemon refuses the login")

// For each Ping of the daemon, answerPings sends the client a request. When the client has
// answered, it sends the daemon a Pong.
func (c *connection) answerPings(server *ssh.ServerConn) {
	for range c.pings {
		if _, _, err := server.SendRequest("keepalive@openssh.com", true, nil); err != nil {
			return
		}
		c.send(&sshproto.Pong{})
	}
}

// refuse refuses requests about the connection, such as a request to listen on a port for the
// client (tcpip-forward).
func refuse(requests <-chan *ssh.Request) {
	for r := range requests {
		_ = r.Reply(false, nil) // fails only if the client has left
	}
}
