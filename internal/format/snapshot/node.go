package snapshot

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"regexp"
)

// Node stands for the name of a host in the ids of its sandboxes, so that a router finds the host
// of a sandbox from the id alone. The zero Node is a host without a name, whose ids are all random.
//
// The ids of a host with a name end with its Node. Their other 96 bits are random, so that ids stay
// unguessable.
type Node [4]byte

// nodeName matches names of hosts, such as names of nodes in Kubernetes.
var nodeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)

// CheckNode returns an error unless name is a valid name of a host.
func CheckNode(name string) error {
	if !nodeName.MatchString(name) {
		return fmt.Errorf("node %.100q: want 1 to 253 of a-z, 0-9, - and ., with a letter or digit first and last", name)
	}
	return nil
}

// NodeOf returns the Node for the name of a host; the zero Node for an empty name. Two names can
// have the same Node, with a probability of one in four billion.
func NodeOf(name string) (n Node) {
	if name == "" {
		return n
	}
	digest := sha256.Sum256([]byte("forkd node " + name))
	copy(n[:], digest[:])
	return n
}

// NewID is like the function NewID, but returns an id that ends with n, unless n is the zero Node.
func (n Node) NewID() string {
	if n == (Node{}) {
		return NewID()
	}
	var p [idBytes]byte
	rand.Read(p[:]) // never fails, see the function NewID
	copy(p[idBytes-len(n):], n[:])
	return idEncoding().EncodeToString(p[:])
}

// NodeOfID returns the Node at the end of an id. An id that a host without a name has made contains
// a random Node.
func NodeOfID(id string) (n Node, err error) {
	if err := CheckID(id); err != nil {
		return n, err
	}
	p, err := idEncoding().DecodeString(id)
	if err != nil {
		return n, err
	}
	copy(n[:], p[idBytes-len(n):])
	return n, nil
}
